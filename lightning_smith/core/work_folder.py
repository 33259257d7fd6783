"""Folders of a stage's logs, one for each combination of the settings that decide what is logged.

    folder = settings_folder(work, {"temperature": 1.0, "agent": {"max_turns": 4}}, stage="probe")
    log = RolloutLog(folder / "rollouts.jsonl")

`settings.json` in the folder says what its records were made under. A stage that is run again under other settings gets
another folder, so none of its old records counts; under the old settings again, it goes on in the old one. Settings of
speed alone (workers, hosts, retries) are not among them: a change of them must not cost finished work.
"""

from __future__ import annotations

import glob
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import dump_json, hash_json, read_json, write_json

SETTINGS_FILE = "settings.json"
ROWS_FILE = "rows.json"

_KEY_DIGITS = 12
_ABSENT = object()
_SHOWN = 60
"""Characters of a value that are shown; templates are longer."""


def settings_key(settings: Mapping[str, Any]) -> str:
    """12 hexadecimal digits that stand for these settings."""
    return hash_json(settings)[:_KEY_DIGITS]


def settings_folder(parent: Path, settings: Mapping[str, Any], *, stage: str, label: str = "") -> Path:
    """Return `<parent>/<label><key>`, the folder of the records made under exactly these settings; make it if absent.

    If it is new and there are folders of other settings with this label, say what differs from the last one in use.
    """
    folder = parent / f"{label}{settings_key(settings)}"
    path = folder / SETTINGS_FILE
    if path.exists():
        path.touch()
    else:
        others = parent.glob(f"{glob.escape(label)}{'[0-9a-f]' * _KEY_DIGITS}/{SETTINGS_FILE}")
        latest = max(others, key=lambda other: other.stat().st_mtime, default=None)
        if latest is not None:
            print(
                f"[{stage}] {differences(read_json(latest), settings)}: what {latest.parent} holds does not count, new "
                f"records go to {folder}",
                file=sys.stderr,
                flush=True,
            )
        write_json(path, settings)
    return folder


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what differs, as a clause: `agent.max_turns is 2 instead of 4, temperature is 0.2 instead of 1.0`."""
    old, new = (_flat(json.loads(dump_json(settings))) for settings in (before, now))
    names = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
    return ", ".join(f"{name} is {_shown(new, name)} instead of {_shown(old, name)}" for name in names)


def require_rows(folder: Path, rows: Mapping[str, str]) -> None:
    """Note which row (its hash) each instance had, for logs whose set of tasks may grow.

    Raise UserError if the records in the folder are of another row of one of the instances.
    """
    path = folder / ROWS_FILE
    known: dict[str, str] = read_json(path) if path.exists() else {}
    for name, digest in rows.items():
        if known.get(name, digest) != digest:
            raise UserError(
                f"{folder} holds rollouts of {name} as another row than it is now: move that folder away and run the "
                "same command again"
            )
    if not rows.keys() <= known.keys():
        write_json(path, {**known, **rows})


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Leaves of nested objects by dotted name."""
    if not isinstance(value, dict):
        return {name: value}
    parts = (_flat(part, f"{name}.{key}" if name else key) for key, part in value.items())
    return {key: leaf for part in parts for key, leaf in part.items()}


def _shown(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "absent"
    text = dump_json(settings[name])
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
