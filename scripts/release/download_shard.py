"""Fetch one parquet shard of the release and check its hash and its columns."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.release.download import add_source_flags, download_shard, source_and_hash


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_source_flags(parser)
    parser.add_argument("--file", required=True, help="path of the shard below the location")
    parser.add_argument("--out", type=Path, required=True, help="where the shard goes")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    source, sha256 = source_and_hash(args)
    fetched = download_shard(source, args.file, args.out, sha256)
    print(f"{args.file}: {'fetched and checked' if fetched else 'already there, whole'}")


if __name__ == "__main__":
    run_script(main)
