"""What right code does with the altered tests of an image: found out before any rollout, and shipped with the tasks.

    references = References.read(Path("references.jsonl.gz"))
    results = references.find(image_name, "main", {"tests/test_a.py": source})    # Results by variant, or None

Without it each grading that needs the results of a variant (`assignments.py`) runs right code itself, unless a store of
test runs has it already. A row holds for all tasks of an image with the same right code whose test files are among its
own, byte for byte; whatever is not found is run. A row is one JSON object:

    {"version": 1, "image_name": ..., "right": "main", "sources": {"tests/test_a.py": sha256}, "ids": [...],
     "failing": ["0b", ...], "passing": ["04", ...]}

`failing` and `passing` have a hexadecimal number for each variant, whose lowest bit stands for the first of `ids`.
Tests that did not do the same twice are in neither.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import dump_json, parse_row, write_atomic
from lightning_smith.grading.altered import ALTERATIONS_VERSION
from lightning_smith.grading.assignments import VARIANTS, Results


@dataclass(frozen=True)
class ReferenceRow:
    """The results of one image's right code.

    Attributes: `sources` has the sha256 of each test file by its path, `results` are in the order of the variants.
    """

    image_name: str
    right: str
    sources: Mapping[str, str]
    results: tuple[Results, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for one JSON line."""
        ids = sorted({test for each in self.results for test in each.failing | each.passing})
        place = {test: number for number, test in enumerate(ids)}

        def bits(tests: Iterable[str]) -> str:
            digits = ["0"] * len(ids)
            for test in tests:
                digits[place[test]] = "1"
            return f"{int(''.join(reversed(digits)) or '0', 2):x}"

        return {
            "version": ALTERATIONS_VERSION,
            "image_name": self.image_name,
            "right": self.right,
            "sources": dict(sorted(self.sources.items())),
            "ids": ids,
            "failing": [bits(each.failing) for each in self.results],
            "passing": [bits(each.passing) for each in self.results],
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], where: str) -> ReferenceRow:
        """Return the inverse of `to_dict`; `where` names the row in a UserError."""
        try:
            ids = [str(test) for test in row["ids"]]

            def tests(bits: str) -> frozenset[str]:
                digits = f"{int(bits, 16):b}"[::-1]
                if len(digits) > max(1, len(ids)) or (digits == "1" and not ids):
                    raise ValueError("a number stands for more tests than there are")
                return frozenset(test for test, digit in zip(ids, digits, strict=False) if digit == "1")

            pairs = zip(row["failing"], row["passing"], strict=True)
            results = tuple(Results(tests(failing), tests(passing)) for failing, passing in pairs)
            if len(results) != VARIANTS:
                raise ValueError(f"it has {len(results)} variants instead of {VARIANTS}")
            return cls(str(row["image_name"]), str(row["right"]), dict(row["sources"]), results)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{where} is no row of a reference file: {error}; make the file again") from None


class References:
    """The rows of a reference file; those of another version of the alterations are left out."""

    def __init__(self, rows: Iterable[ReferenceRow] = ()) -> None:
        self._rows: dict[tuple[str, str], ReferenceRow] = {(row.image_name, row.right): row for row in rows}

    @classmethod
    def read(cls, path: Path) -> References:
        """UserError if the file is absent, cut off or malformed."""
        try:
            lines = gzip.decompress(path.read_bytes()).split(b"\n")
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: run the rule that makes it first") from None
        except (OSError, EOFError) as error:
            raise UserError(f"{path} is no whole gzip file ({error}): make it again") from None
        rows = [(number, parse_row(line, path, number)) for number, line in enumerate(lines, start=1) if line]
        current = [(number, row) for number, row in rows if row.get("version") == ALTERATIONS_VERSION]
        return cls(ReferenceRow.from_dict(row, f"{path} row {number}") for number, row in current)

    def find(self, image_name: str, right: str, sources: Mapping[str, bytes]) -> Sequence[Results] | None:
        """Results by variant for test files with these contents, None if they are not known."""
        row = self._rows.get((image_name, right))
        if row is None or any(row.sources.get(path) != sha256(text) for path, text in sources.items()):
            return None
        return row.results


def sha256(content: bytes) -> str:
    """Return the hash of a test file."""
    return hashlib.sha256(content).hexdigest()


def write_references(path: Path, rows: Iterable[ReferenceRow]) -> None:
    """Write a reference file, the same bytes for the same rows."""
    ordered = sorted(rows, key=lambda row: (row.image_name, row.right))
    lines = "".join(dump_json(row.to_dict()) + "\n" for row in ordered)
    write_atomic(path, gzip.compress(lines.encode(), mtime=0))
