"""Remove what preparing images made at the Docker daemon, after showing it and asking.

Named by the manifests: both tags of every image, the agent layer's own image and volume; and containers of processes
that have ended. Images below the layer stay, unless --bases says otherwise. `prepare_images` makes it all again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.images.daemon import connect
from lightning_smith.images.prepare import read_manifest
from lightning_smith.images.prune import Bases, find_made, remove_made


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--manifests", type=Path, default=Path("data/images"), help="folder of manifests (%(default)s)"
    )
    parser.add_argument("--image", action="append", help="only this image's key; may be given several times")
    parser.add_argument(
        "--bases",
        type=Bases,
        choices=list(Bases),
        default=Bases.NONE,
        help="images below the layer: none, those that preparation pulled, or all (%(default)s)",
    )
    parser.add_argument(
        "--leftovers",
        action="store_true",
        help="also images of ours that no manifest here names: of an earlier layer, or not proved",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if not (args.yes or sys.stdin.isatty()):
        raise UserError(
            "there is nobody to ask (standard input is no terminal): give --yes to remove all the same"
        )
    paths = sorted(args.manifests.glob("*.json"))
    if unknown := sorted(set(args.image or ()) - {path.stem for path in paths}):
        raise UserError(f"{args.manifests} has no manifest of {unknown[0]}: give an image's key")
    manifests = [read_manifest(path) for path in paths if args.image is None or path.stem in args.image]
    with connect() as daemon:
        made = find_made(daemon, manifests, bases=args.bases, leftovers=args.leftovers)
        if not made:
            print("nothing to remove")
            return
        for line in made.lines():
            print(line)
        print(
            f"{len(made.images)} images, {len(made.containers)} containers and {len(made.volumes)} volumes, "
            f"at most {made.freed_bytes / 1e9:.2f} GB"
        )
        if not args.yes and input("remove these? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was removed")
            return
        removed, kept = remove_made(daemon, made)
    for line in kept:
        print(f"kept {line}")
    print(f"{len(removed)} removed, {len(kept)} kept")


if __name__ == "__main__":
    run_script(main)
