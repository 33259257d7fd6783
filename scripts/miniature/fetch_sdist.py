"""Fetch one pinned distribution of the miniature from the package index that uv or pip would use.

UV_DEFAULT_INDEX, UV_INDEX_URL, PIP_INDEX_URL and pip.conf are honoured, in this order; the default is PyPI.
A file that is there already with the right sha256 is used as it is, so no index is needed then.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.miniature.tasks.sources import fetch_sdist, find_source
from lightning_smith.miniature.tasks.table import load_sources


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, default=Path("assets/miniature/sources.tsv"), help="the pins")
    parser.add_argument("--package", required=True, help="name in the column package")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    source = find_source(load_sources(args.sources), args.package, args.out.name)
    fetched = fetch_sdist(source, args.out)
    print(f"{source.filename} {'fetched to' if fetched else 'is already'} {args.out}")


if __name__ == "__main__":
    run_script(main)
