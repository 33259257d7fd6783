"""List the branches that one image has, without running anything of a task."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.errors import run_script
from lightning_smith.images.branches import LocalBranches, write_branches


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-name", required=True, help="image name, or its key alone")
    parser.add_argument("--images", type=Path, required=True, help="folder of the local images")
    parser.add_argument("--out", type=Path, required=True, help="JSON file: image_name, digest, branches")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    write_branches(LocalBranches(args.images).list_branches(args.image_name), args.out)


if __name__ == "__main__":
    run_script(main)
