"""Split the chosen tasks into training and validation sets, disjoint by id and by change."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.errors import run_script
from lightning_smith.files import sha256_file, write_json, write_jsonl
from lightning_smith.probe.rows import select_rows
from lightning_smith.probe.split import refuse_overlap, split


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--selection", type=Path, required=True, help="table of select_by_difficulty")
    add("--tasks", type=Path, required=True, help="candidates with full rows, parquet or JSON lines")
    add("--validation", type=int, required=True, help="tasks held aside")
    add("--seed", type=int, required=True, help="of the draw and of the order of both files")
    add("--train", type=Path, required=True, help="train_dataset_mixed.jsonl, full rows")
    add("--val", type=Path, required=True, help="val_dataset_filtered.jsonl, full rows")
    add("--summary", type=Path, required=True, help="JSON: counts, hashes, groups of related tasks")
    return parser.parse_args(argv)


def chosen_ids(path: Path) -> list[str]:
    """Instances of the table whose column `chosen` is 1."""
    lines = path.read_text(encoding="utf-8").split("\n")
    columns = lines[0].split("\t")
    rows = [dict(zip(columns, line.split("\t"), strict=True)) for line in lines[1:] if line]
    return [row["instance_id"] for row in rows if row["chosen"] == "1"]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    result = split(select_rows(args.tasks, chosen_ids(args.selection)), args.validation, args.seed)
    refuse_overlap(result.train, result.validation)
    write_jsonl(args.train, result.train)
    write_jsonl(args.val, result.validation)
    write_json(
        args.summary,
        {
            "train": {"tasks": len(result.train), "sha256": sha256_file(args.train)},
            "validation": {"tasks": len(result.validation), "sha256": sha256_file(args.val)},
            "seed": args.seed,
            "related_groups": result.groups,
        },
    )
    counts = f"{len(result.train)} tasks train, {len(result.validation)} validate"
    print(f"{counts}, {len(result.groups)} groups of related tasks")


if __name__ == "__main__":
    run_script(main)
