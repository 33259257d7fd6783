"""Files that are either whole or absent: atomic writes, LF-only JSON lines, hashes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Write `data` to a temporary file beside `path`, flush it to the disk and rename it into place."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode("utf-8") if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        error.filename = str(path)
        raise
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """JSON text; non-ASCII characters stay as they are, NaN and infinities are refused."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)


def write_json(path: Path | str, value: Any) -> None:
    """Write one JSON document atomically, indented, with a final newline."""
    write_atomic(path, dump_json(value, indent=1) + "\n")


def write_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines atomically."""
    write_atomic(path, "".join(dump_json(row) + "\n" for row in rows))


def read_json(path: Path | str) -> Any:
    """Read one JSON document; a UserError names the file if it is absent or malformed."""
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: run the rule that makes it first (uv run snakemake {path})"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not valid JSON ({error}): delete it and run the same command again"
        ) from None


def read_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yield rows of a JSON-lines file, ended by LF alone (U+2028, U+2029 and U+0085 are text).

    Raise UserError with file and line number for a malformed row, a torn last line included.
    """
    if not Path(path).exists():
        raise UserError(f"{path} does not exist: run the rule that makes it first")
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip(b" \t\r\n"):
                continue
            yield parse_row(line, path, number)


_AS_JSON_LINES = (
    "write its rows as such with `python -c 'import json, sys, pyarrow.parquet as p; "
    "[print(json.dumps(row)) for row in p.read_table(sys.argv[1]).to_pylist()]' FILE.parquet > FILE.jsonl`"
)


def parse_row(line: bytes, path: Path | str, number: int) -> dict[str, Any]:
    """One line of a JSON-lines file; a UserError names file and line if it is no JSON object."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        if number == 1 and line.startswith(b"PAR1"):
            raise UserError(
                f"{path} is a Parquet file, and JSON lines are read here: {_AS_JSON_LINES}"
            ) from None
        raise UserError(f"{path} line {number} is not valid JSON ({error}): the file is damaged") from None
    if not isinstance(row, dict):
        raise UserError(f"{path} line {number} is not a JSON object: the file is damaged")
    return row


def append_jsonl(path: Path | str, rows: Iterable[dict[str, Any]]) -> None:
    """Append rows in one write and flush them to the disk.

    A last line without its LF, left by a process that was killed while it wrote, is cut first.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(dump_json(row) + "\n" for row in rows).encode("utf-8")
    cut_torn_line(path)
    try:
        with path.open("ab", buffering=0) as file:
            written = file.write(data)
            if written != len(data):  # a full disk takes the beginning first
                file.write(data[written:])
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise


def cut_torn_line(path: Path) -> int:
    """Cut what follows the last LF of a log; returns the number of bytes cut (0 for an absent file)."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
        return size - end


def sha256_file(path: Path | str) -> str:
    """Return the hexadecimal sha256 of a file, read in blocks."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(value: Any) -> str:
    """Return the hexadecimal sha256 of a value's canonical JSON (sorted keys, no blanks)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
