"""List the branches that one image has, without running anything of a task."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.errors import run_script
from lightning_smith.images.branches import LocalBranches, write_branches


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-name", required=True, help="image name, or its key alone")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--images", type=Path, help="folder of the local images")
    where.add_argument("--docker", action="store_true", help="an image of the Docker daemon (DOCKER_HOST)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file: image_name, digest, branches")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.docker:
        from lightning_smith.images.daemon import connect
        from lightning_smith.images.docker import DockerBranches

        with connect() as daemon:
            found = DockerBranches(daemon).list_branches(args.image_name)
    else:
        found = LocalBranches(args.images).list_branches(args.image_name)
    write_branches(found, args.out)


if __name__ == "__main__":
    run_script(main)
