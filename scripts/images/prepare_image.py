"""Prepare one image: pull it, add the agent layer, prove both unchanged and working, write its manifest."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_atomic
from lightning_smith.funnel.certify import image_certifier
from lightning_smith.images.options import (
    add_certify_options,
    add_layer_options,
    add_options,
    preparation,
    tools,
)
from lightning_smith.images.preflight import check_daemon, check_space, plan_pulls
from lightning_smith.release.image_lists import read_names


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", required=True, help="image name without organisation")
    parser.add_argument(
        "--names", type=Path, required=True, help="table of keys and names (list_image_names.py)"
    )
    parser.add_argument(
        "--plan",
        type=Path,
        help="what the registry said of the missing images (plan_images.py), if it is there",
    )
    parser.add_argument("--failure", type=Path, help="file for the reason if it cannot be prepared")
    parser.add_argument("--out", type=Path, required=True, help="manifest, <key>.json")
    add_options(parser)
    add_layer_options(parser)
    parser.add_argument("--tasks", type=Path, nargs="+", default=[], help="SWE-smith rows to certify it with")
    add_certify_options(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        names = read_names(args.names)
        if args.key not in names:
            raise UserError(f"{args.names} does not name {args.key}: ask for an image that a task has")
        with tools(args, 1, args.plan) as found:
            about = check_daemon(found.daemon)
            plan = plan_pulls(found.puller, [names[args.key]], found.known, parallel=1)
            check_space(found.daemon, plan, Path(about["root"]))
            found.daemon.sweep()
            prepared = preparation(
                args, found, args.out.parent, image_certifier(found.daemon, args.tasks, args)
            )
            manifest = prepared.prepare(names[args.key])
            args.out.touch()  # newer than what asked for this run, although what is as it was keeps its manifest
            found.progress.note(f"{names[args.key]}: ready as {manifest['image']['tags'][1]}")
    except UserError as error:
        if args.failure:
            write_atomic(args.failure, f"{error}\n")
        raise
    if args.failure:
        args.failure.unlink(missing_ok=True)


if __name__ == "__main__":
    run_script(main)
