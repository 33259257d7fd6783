"""One table of all image manifests, or rows of them for assets/images/images.tsv."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_atomic
from lightning_smith.images.prepare import known_rows, read_manifest, table


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--manifests", type=Path, nargs="+", required=True, help="manifests of prepare_image.py"
    )
    parser.add_argument(
        "--known", action="store_true", help="print rows of the table of required digests instead"
    )
    parser.add_argument("--out", type=Path, help="table (standard output)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    manifests = [read_manifest(path) for path in args.manifests]
    text = known_rows(manifests) if args.known else table(manifests)
    if args.out is None:
        sys.stdout.write(text)
    else:
        write_atomic(args.out, text)


if __name__ == "__main__":
    run_script(main)
