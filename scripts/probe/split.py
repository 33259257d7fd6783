"""Write the training and validation sets, disjoint by id and by change, from the table of what was chosen."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.core.files import sha256_file, write_jsonl
from lightning_smith.core.provenance import write_manifest
from lightning_smith.probe.rows import select_rows
from lightning_smith.probe.select import Side, read_sides
from lightning_smith.probe.split import refuse_overlap, split


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--selection", type=Path, required=True, help="table of select_by_difficulty")
    add("--tasks", type=Path, required=True, help="candidates with full rows, parquet or JSON lines")
    add("--seed", type=whole(0), required=True, help="of the order of both files")
    add("--train", type=Path, required=True, help="train_dataset_mixed.jsonl, full rows")
    add("--val", type=Path, required=True, help="val_dataset_filtered.jsonl, full rows")
    add("--summary", type=Path, required=True, help="JSON: counts, hashes, tasks left out")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    sides = read_sides(args.selection)
    train, validation = (select_rows(args.tasks, sides[side]) for side in (Side.TRAIN, Side.VALIDATION))
    result = split(train, validation, args.seed)
    refuse_overlap(result.train, result.validation)
    write_jsonl(args.train, result.train)
    write_jsonl(args.val, result.validation)
    write_manifest(
        args.summary,
        {
            "train": {"tasks": len(result.train), "sha256": sha256_file(args.train)},
            "validation": {"tasks": len(result.validation), "sha256": sha256_file(args.val)},
            "seed": args.seed,
            "left_out": result.left_out,
        },
    )
    print(
        f"{len(result.train)} tasks train, {len(result.validation)} validate, {len(result.left_out)} share a change "
        "with one that validates and are left out"
    )


if __name__ == "__main__":
    run_script(main)
