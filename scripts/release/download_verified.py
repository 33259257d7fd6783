"""Fetch the evaluation set and check its hash, columns and number of instances."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.release.download import add_source_flags, download_shard, source_and_hash
from lightning_smith.release.evaluation_set import read_tasks


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_source_flags(parser)
    parser.add_argument(
        "--file", default="data/test-00000-of-00001.parquet", help="path in it (default %(default)s)"
    )
    parser.add_argument(
        "--instances", type=whole(1), required=True, help="instances that it must have, at least"
    )
    parser.add_argument("--out", type=Path, required=True, help="parquet file to write")
    args = parser.parse_args(argv)

    def check(path: Path) -> None:
        found = len(read_tasks(path))
        if found < args.instances:
            raise UserError(
                f"{args.location} has {found} instances, not {args.instances}: correct evaluation.instances"
            )

    source, sha256 = source_and_hash(args)
    fetched = download_shard(source, args.file, args.out, sha256, check=check)
    print(f"{args.file}: {'fetched and checked' if fetched else 'already there, whole'}")


if __name__ == "__main__":
    run_script(main)
