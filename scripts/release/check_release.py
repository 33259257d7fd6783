"""Count rows, images and empty statements of a release; refuse one that differs from what it must have."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.provenance import write_manifest
from lightning_smith.funnel.release_counts import COUNTED, describe_release


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    add("--rows", type=int, default=-1, help="rows that it must have; -1 (the default): any number")
    add("--empty-statements", type=int, default=-1, help="null, empty and blank statements; -1: any number")
    add("--images", type=int, default=-1, help="images that its rows name; -1: any number")
    add(
        "--allow-other",
        nargs="*",
        default=[],
        choices=COUNTED,
        help="counts that may differ: recorded, not refused",
    )
    add("--out", type=Path, required=True, help="JSON: counts, expected, differences")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    given = {"rows": args.rows, "empty_statements": args.empty_statements, "images": args.images}
    expected = {name: None if value < 0 else value for name, value in given.items()}
    release = describe_release(args.shards, expected, allow_other=args.allow_other)
    write_manifest(args.out, release)
    print(", ".join(f"{count} {name.replace('_', ' ')}" for name, count in release["counts"].items()))
    for difference in release["differences"]:
        print(f"warning: {difference}")


if __name__ == "__main__":
    run_script(main)
