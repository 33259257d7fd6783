"""Filter: drop rows that the official harness cannot grade.

For SWE-smith's own repositories (--source smith) run it in envs/smith, which has SWE-smith's parsers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pyarrow as pa

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.funnel.filters import gradable
from lightning_smith.funnel.filters.run import add_common_flags, run_filter
from lightning_smith.grading.open_profiles import profile_source
from lightning_smith.grading.profiles import read_profiles


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_flags(parser)
    parser.add_argument(
        "--profiles", type=Path, required=True, help="table of scripts/funnel/list_profiles.py"
    )
    parser.add_argument("--source", required=True, help="smith, or a folder of local images")
    parser.add_argument(
        "--odd",
        type=Path,
        required=True,
        help="JSON lines: an id that cannot be read back, for each such row",
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    profiles = read_profiles(args.profiles)
    odd_ids = gradable.OddIds(profile_source(args.source))
    found: dict[str, gradable.Judgement] = {}

    def reasons(batch: pa.RecordBatch) -> list[str | None]:
        judged = gradable.judge(batch, profiles, odd_ids)
        ids = batch.column("instance_id").to_pylist()
        found.update((name, each) for name, each in zip(ids, judged, strict=True) if each.test is not None)
        return [each.reason for each in judged]

    run_filter(gradable.NAME, args.shards, gradable.COLUMNS, reasons, args.previous, args.out)
    rows = (
        {"instance_id": name, "test": each.test, "why": each.detail} for name, each in sorted(found.items())
    )
    write_jsonl(args.odd, rows)


if __name__ == "__main__":
    run_script(main)
