"""Prepare one image: pull it, add the agent layer, prove both unchanged and working, write its manifest."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.config.settings_file import read_settings, read_settings_file, settings_parser
from lightning_smith.config.stages import ImageSources, ImageStage
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_atomic
from lightning_smith.funnel.certify import image_certifier
from lightning_smith.images.preflight import check_daemon, check_space, plan_pulls
from lightning_smith.images.tools import preparation, tools
from lightning_smith.release.image_lists import read_names


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = settings_parser(__doc__, ImageStage)
    add = parser.add_argument
    add("--sources", type=Path, required=True, help="JSON: organisations, mirror, min_mb_per_s")
    add("--key", required=True, help="image name without organisation")
    add("--names", type=Path, required=True, help="table of keys and names (list_image_names.py)")
    add(
        "--plan",
        type=Path,
        help="what the registry said of the missing images (plan_images.py), if it is there",
    )
    add("--out", type=Path, required=True, help="manifest, <key>.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    stage: ImageStage = read_settings(args, ImageStage)
    failure = stage.failures / f"{args.key}.txt" if stage.failures else None
    try:
        names = read_names(args.names)
        if args.key not in names:
            raise UserError(f"{args.names} does not name {args.key}: ask for an image that a task has")
        with tools(read_settings_file(args.sources, ImageSources), 1, args.plan) as found:
            about = check_daemon(found.daemon)
            plan = plan_pulls(found.puller, [names[args.key]], found.known, parallel=1)
            check_space(found.daemon, plan, Path(about["root"]))
            found.daemon.sweep()
            prepared = preparation(stage, found, args.out.parent, image_certifier(found.daemon, stage))
            manifest = prepared.prepare(names[args.key])
            args.out.touch()  # newer than what asked for this run, although what is as it was keeps its manifest
            found.progress.note(f"{names[args.key]}: ready as {manifest['image']['tags'][1]}")
    except UserError as error:
        if failure:
            write_atomic(failure, f"{error}\n")
        raise
    if failure:
        failure.unlink(missing_ok=True)


if __name__ == "__main__":
    run_script(main)
