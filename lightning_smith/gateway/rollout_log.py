"""The durable log of a stage's rollouts: what a resumed run need not do again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightning_smith.contracts.outcome import RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import append_jsonl, cut_torn_line, read_jsonl

RolloutKey = tuple[str, int]
"""(instance_id, sample)"""


class RolloutLog:
    """Append-only JSON lines, one record a rollout, each flushed to the disk before `append` returns.

    A line torn by a kill is cut when the log is opened. Of several records of one (instance, sample) the
    first valid one counts, so a late or repeated result changes nothing. One process writes at a time
    (`stage_lock`).
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._records: dict[RolloutKey, RolloutRecord] = {}
        if self.path.exists():
            cut_torn_line(self.path)
            for row in read_jsonl(self.path):
                self._keep(RolloutRecord.from_dict(row))

    def _keep(self, record: RolloutRecord) -> bool:
        key = (record.instance_id, record.sample)
        known = self._records.get(key)
        if known is not None and known.valid:
            return False
        self._records[key] = record
        return True

    def done(self) -> set[RolloutKey]:
        """Return keys that have a valid record."""
        return {key for key, record in self._records.items() if record.valid}

    def records(self) -> list[RolloutRecord]:
        """One record a key, sorted by instance and sample."""
        return [self._records[key] for key in sorted(self._records)]

    def append(self, record: RolloutRecord) -> bool:
        """Write a record; False, and nothing is written, if its rollout has a valid one already."""
        if not self._keep(record):
            return False
        append_jsonl(self.path, [record.to_dict()])
        return True


def merge_logs(paths: Iterable[Path | str]) -> list[RolloutRecord]:
    """Return records of several finished logs, sorted. Raise UserError if a rollout is in them twice."""
    records: dict[RolloutKey, RolloutRecord] = {}
    for path in paths:
        for row in read_jsonl(path):
            record = RolloutRecord.from_dict(row)
            key = (record.instance_id, record.sample)
            if key in records:
                raise UserError(f"{path} holds {key[0]} sample {key[1]} a second time: it would count twice")
            records[key] = record
    return [records[key] for key in sorted(records)]
