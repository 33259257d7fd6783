"""Make the Docker image of one package of the miniature out of its local image, without network but for the base."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.settings_file import read_settings_file
from lightning_smith.config.stages import ImageSources
from lightning_smith.core.errors import run_script
from lightning_smith.core.provenance import write_manifest
from lightning_smith.images.tools import tools
from lightning_smith.miniature.docker_images import Builder
from lightning_smith.repositories.local import LocalImage


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--image", type=Path, required=True, help="folder of the local image (build_image.py)"
    )
    parser.add_argument("--base", required=True, help="image with bash, git and the testbed's Python")
    parser.add_argument("--testbed", type=Path, required=True, help="uv environment of envs/testbed")
    parser.add_argument("--out", type=Path, required=True, help="JSON file that says what was made")
    parser.add_argument(
        "--sources", type=Path, required=True, help="JSON: organisations, mirror, min_mb_per_s"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    with tools(read_settings_file(args.sources, ImageSources), 1) as found:
        base = found.puller.pull(args.base).found
        about = Builder(found.daemon, base, args.testbed, args.out.parent).build(LocalImage.open(args.image))
    write_manifest(args.out, about)
    print(f"{about['image_name']}: {about['image']['id']}")


if __name__ == "__main__":
    run_script(main)
