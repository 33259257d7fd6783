"""Live checkpoints of a trainer: whole ones are found again, half-written ones never count.

`<root>/global_step_N/` holds what the trainer wrote and `files.json`, written last, with size and sha256 of
every other file. A folder without it, or with a file that is absent or differs, is skipped and named;
neither its number nor a tracker file is believed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, sha256_file, write_json

FILES = "files.json"
REQUIRED = frozenset({"model.safetensors", "optimizer.pt", "state.json"})
"""Files without which training could not go on exactly where it stopped."""

_NAME = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class Skipped:
    """A checkpoint folder that does not count, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint (step 0, no path if there is none) and newer ones that are unusable."""

    step: int
    path: Path | None
    skipped: tuple[Skipped, ...]


def write_checkpoint(root: Path | str, step: int, fill: Callable[[Path], None]) -> Path:
    """Write `<root>/global_step_<step>/`: `fill(folder)` writes its files, then `files.json` seals it.

    What a killed attempt left under the name is removed first. Every file is flushed to the disk before it is
    sealed, so a power cut cannot leave a sealed folder with empty files.
    """
    folder = Path(root) / f"global_step_{step}"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    fill(folder)
    files = describe_files(folder)
    if missing := sorted(REQUIRED - set(files)):
        raise ValueError(f"the trainer wrote no {missing[0]} into {folder}")
    for name in files:
        _flush(folder / name)
    write_json(folder / FILES, files)
    return folder


def describe_files(folder: Path | str) -> dict[str, dict[str, Any]]:
    """`{name: {bytes, sha256}}` of all files of a folder but `files.json`, names relative to it."""
    folder = Path(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / FILES)
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in paths
    }


def fault(folder: Path | str, required: Collection[str] = REQUIRED) -> str | None:
    """Return why a checkpoint folder is not whole, in a few words; None if it is."""
    folder = Path(folder)
    if not (folder / FILES).is_file():
        return f"it lacks {FILES}, so its writing was not finished"
    try:
        promised = read_json(folder / FILES)
    except UserError:
        return f"its {FILES} is damaged"
    if missing := sorted(set(required) - set(promised)):
        return f"its {FILES} does not list {missing[0]}"
    for name, entry in promised.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {entry['bytes']}"
        if sha256_file(path) != entry["sha256"]:
            return f"{name} has another sha256 than {FILES} says"
    return None


def newest_whole(root: Path | str, upto: int | None = None) -> Found:
    """Return the whole checkpoint of the highest step, at most `upto`."""
    folders: list[tuple[int, Path]] = []
    for path in Path(root).glob("global_step_*"):
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and (upto is None or int(match[1]) <= upto):
            folders.append((int(match[1]), path))
    skipped: list[Skipped] = []
    for step, path in sorted(folders, reverse=True):
        reason = fault(path)
        if reason is None:
            return Found(step, path, tuple(skipped))
        skipped.append(Skipped(path, reason))
    return Found(0, None, tuple(skipped))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
