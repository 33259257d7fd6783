"""Merge the probe's shards into one log: every rollout once, sorted by instance and sample."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.gateway.rollout_log import merge_logs


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help="finished logs of the shards")
    parser.add_argument("--out", type=Path, required=True, help="the probe log")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    records = merge_logs(args.shards)
    write_jsonl(args.out, (record.to_dict() for record in records))
    print(f"{len(records)} rollouts of {len({record.instance_id for record in records})} tasks in {args.out}")


if __name__ == "__main__":
    run_script(main)
