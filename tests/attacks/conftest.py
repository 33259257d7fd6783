"""The kinds of workspaces that attacks are tried in."""

import pytest
from kind_fixtures import daemon, docker_image_name, kind, local_image, pods

__all__ = ["daemon", "docker_image_name", "kind", "local_image", "pods"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out attacks in kinds of workspace that they are not for."""
    left_out = [item for item in items if not _wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _wanted(item)]


def _wanted(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    entry, kind = parameters.get("entry"), parameters.get("kind")
    return entry is None or kind is None or kind in entry.kinds
