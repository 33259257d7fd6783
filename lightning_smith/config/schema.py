"""The JSON schema of the configuration, for editors.

uv run python -m lightning_smith.config.schema > schemas/config.schema.yaml
"""

from __future__ import annotations

from typing import Any

import yaml

from lightning_smith.config.check import adapter
from lightning_smith.config.models import Config

HEADER = """\
# Written by `uv run python -m lightning_smith.config.schema`: change lightning_smith/config/models.py instead.
$schema: "https://json-schema.org/draft/2020-12/schema"
"""


def schema_text() -> str:
    """Return the file's content."""
    return HEADER + yaml.safe_dump(schema(), sort_keys=False, width=110, allow_unicode=True)


def schema() -> dict[str, Any]:
    """Return the schema as an object."""
    return {"title": "lightning-smith configuration", **_untitled(adapter(Config).json_schema())}


def _untitled(value: Any) -> Any:
    """Return a schema without pydantic's titles, which repeat the keys."""
    if isinstance(value, dict):
        return {
            key: _untitled(inner) for key, inner in value.items() if key != "title" or isinstance(inner, dict)
        }
    return [_untitled(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    print(schema_text(), end="")
