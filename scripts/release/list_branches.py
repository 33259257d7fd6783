"""List the branches that one image has, without running anything of a task."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.release.image_lists import read_names
from lightning_smith.repositories.branches import LocalBranches, write_branches
from lightning_smith.repositories.names import any_spelling


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image-name", required=True, help="image name, or its key alone")
    parser.add_argument("--names", type=Path, help="table with the name of each key (list_image_names.py)")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--images", type=Path, help="folder of the local images")
    where.add_argument("--docker", action="store_true", help="an image of the Docker daemon (DOCKER_HOST)")
    parser.add_argument("--out", type=Path, required=True, help="JSON file: image_name, digest, branches")
    return parser.parse_args(argv)


def full_name(image_name: str, table: Path | None) -> str:
    """Return the name of a key in the table, if one is given."""
    names = {image_name: image_name} if table is None else read_names(table)
    if image_name not in names:
        raise UserError(f"{table} does not name {image_name}: give the key of an image that a task has")
    return names[image_name]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    name = full_name(args.image_name, args.names)
    if args.docker:
        from lightning_smith.images.daemon import connect
        from lightning_smith.images.docker import DockerBranches

        with connect() as daemon:
            found = DockerBranches(daemon).list_branches(any_spelling(name))
    else:
        found = LocalBranches(args.images).list_branches(name)
    write_branches(found, args.out)


if __name__ == "__main__":
    run_script(main)
