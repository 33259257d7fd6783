"""List the images that a release names, one key a line."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.errors import run_script
from lightning_smith.files import write_atomic
from lightning_smith.tasks.image_names import list_images


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    parser.add_argument("--out", type=Path, required=True, help="text file of image keys, sorted")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    write_atomic(args.out, "".join(f"{key}\n" for key in list_images(args.shards)))


if __name__ == "__main__":
    run_script(main)
