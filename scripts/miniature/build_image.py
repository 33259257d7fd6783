"""Build the local image of one package of the miniature: a repository with a branch for each task."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.miniature.repositories import build_image
from lightning_smith.miniature.tasks.release import image_recipe, task_source
from lightning_smith.miniature.tasks.table import load_sources


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", required=True, help="package name, as in sources.tsv")
    parser.add_argument("--sources", type=Path, required=True, help="sources.tsv: the pinned sdists")
    parser.add_argument("--sdist", type=Path, required=True, help="the package's sdist")
    parser.add_argument(
        "--tasks", type=Path, required=True, help="folder of train.jsonl, heldout.jsonl, tests.json"
    )
    parser.add_argument("--testbed-python", type=Path, required=True, help="interpreter that runs the tests")
    parser.add_argument("--out", type=Path, required=True, help="folder of the image, named by its image key")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    source = task_source(load_sources(args.sources), args.package)
    build_image(args.out, image_recipe(source, args.sdist, args.tasks), args.testbed_python)


if __name__ == "__main__":
    run_script(main)
