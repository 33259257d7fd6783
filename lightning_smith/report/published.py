"""Published results, for reading beside the measured ones; nothing is tested against them.

They are figures of other runs: their verdicts by instance are not published, so no paired comparison exists.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.paired import Interval, wilson

COLUMNS = (
    "model",
    "kind",
    "step",
    "trained_examples",
    "resolved",
    "total",
    "rate_percent",
    "source",
    "caveat",
)


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published score on SWE-bench Verified; `resolved` of `total` is None where only a rate is
    published."""

    model: str
    kind: str
    step: int
    trained_examples: int | None
    resolved: int | None
    total: int | None
    rate_percent: float
    source: str
    caveat: str

    @property
    def interval(self) -> Interval | None:
        """Wilson's 95 % interval, where counts are published."""
        return wilson(self.resolved, self.total) if self.resolved is not None and self.total else None


def read_published(path: Path | str) -> list[PublishedRow]:
    """Read results.tsv. Raise UserError for a malformed line or a rate that its counts do not give."""
    if not Path(path).exists():
        raise UserError(f"{path} does not exist: it belongs to the repository, check it out again")
    with Path(path).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise UserError(f"{path} must have the columns {', '.join(COLUMNS)}")
        return [_row(path, number, row) for number, row in enumerate(reader, start=2)]


def _row(path: Path | str, number: int, row: dict[str, str]) -> PublishedRow:
    def count(key: str) -> int | None:
        return int(row[key]) if row[key] else None

    try:
        published = PublishedRow(
            model=row["model"],
            kind=row["kind"],
            step=int(row["step"]),
            trained_examples=count("trained_examples"),
            resolved=count("resolved"),
            total=count("total"),
            rate_percent=float(row["rate_percent"]),
            source=row["source"],
            caveat=row["caveat"],
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} line {number} is malformed: {error}") from None
    if published.resolved is not None and published.total:
        rate = 100 * published.resolved / published.total
        if abs(rate - published.rate_percent) > 0.05:
            raise UserError(
                f"{path} line {number} says {published.rate_percent} % but {published.resolved} of "
                f"{published.total} are {rate:.1f} %"
            )
    return published
