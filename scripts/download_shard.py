"""Fetch one parquet shard of the release and check its hash and its columns."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.errors import UserError, run_script
from lightning_smith.tasks.download import FolderSource, HubSource, download_shard


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--source", choices=("folder", "hub"), required=True, help="a local folder, or Hugging Face"
    )
    parser.add_argument("--location", required=True, help="the folder, or the id of the data set")
    parser.add_argument("--revision", default="none", help="commit of the data set (hub only)")
    parser.add_argument("--file", required=True, help="path of the shard below the location")
    parser.add_argument(
        "--sha256", help="expected hash; left out: what the source announces (SHA256SUMS, the hub)"
    )
    parser.add_argument("--out", type=Path, required=True, help="where the shard goes")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.source == "folder":
        source = FolderSource(Path(args.location))
    elif args.revision == "none":
        raise UserError(
            "a data set of the hub needs --revision: without one it may change between two shards"
        )
    else:
        source = HubSource(args.location, args.revision)
    fetched = download_shard(source, args.file, args.out, args.sha256)
    print(f"{args.file}: {'fetched and checked' if fetched else 'already there, whole'}")


if __name__ == "__main__":
    run_script(main)
