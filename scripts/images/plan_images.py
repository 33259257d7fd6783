"""Say which images are missing and what they take, and refuse what the Docker daemon cannot hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_smith.config.settings_file import read_settings_file
from lightning_smith.config.stages import ImageSources
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script
from lightning_smith.images.preflight import check_daemon, check_space, plan_pulls, write_plan
from lightning_smith.images.tools import tools
from lightning_smith.release.image_lists import choose, read_names


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--names", type=Path, required=True, help="table of keys and names (list_image_names.py)"
    )
    parser.add_argument("--only", nargs="+", help="keys of the images that are wanted")
    parser.add_argument(
        "--max-workers", type=whole(1), default=4, help="images asked for side by side (%(default)s)"
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    parser.add_argument(
        "--sources", type=Path, required=True, help="JSON: organisations, mirror, min_mb_per_s"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    names = read_names(args.names)
    wanted = [names[key] for key in choose(names, args.only or ())]
    with tools(read_settings_file(args.sources, ImageSources), len(wanted)) as found:
        about = check_daemon(found.daemon)
        plan = plan_pulls(found.puller, wanted, found.known, parallel=args.max_workers)
        free = check_space(found.daemon, plan, Path(about["root"]))
    print(f"[images] {plan.sentence()}; {free}", file=sys.stderr, flush=True)
    for name, reason in sorted(plan.unavailable.items()):
        print(f"[images] {name}: {reason}", file=sys.stderr, flush=True)
    write_plan(args.out, plan, about)


if __name__ == "__main__":
    run_script(main)
