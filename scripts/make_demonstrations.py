"""Make the warm start's demonstrations from the pinned source distributions of role `demo`.

Every package gives at most --per-package sites, so that no single one sets the style of the code.
The result depends on the sdists (by hash) and on this repository alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from lightning_smith.errors import UserError, run_script
from lightning_smith.files import sha256_file, write_jsonl
from lightning_smith.mini.demonstrations import Site, collect, lines_to_exclude, read_sources


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sources", type=Path, required=True, help="table of source distributions (sources.tsv)"
    )
    parser.add_argument(
        "--sdists", type=Path, required=True, help="folder that holds the sdists under their file names"
    )
    parser.add_argument("--out", type=Path, required=True, help="demonstrations file to write (JSON lines)")
    parser.add_argument(
        "--per-package", type=int, default=1000, help="most sites a package gives (default 1000)"
    )
    parser.add_argument(
        "--exclude-lines",
        type=Path,
        help="tasks file (JSON lines with `fixed`) whose repaired lines must not be shown",
    )
    arguments = parser.parse_args(argv)

    excluded = lines_to_exclude(arguments.exclude_lines) if arguments.exclude_lines else set()
    sites: list[Site] = []
    dropped = 0
    for package in read_sources(arguments.sources):
        archive = arguments.sdists / package.filename
        if not archive.is_file():
            raise UserError(f"{archive} is missing: fetch the sdists of {arguments.sources} first")
        if sha256_file(archive) != package.sha256:
            raise UserError(
                f"{archive} is not the pinned file (sha256 differs): delete it and fetch it again"
            )
        of_package, excluded_here = collect(package, archive, arguments.per_package, excluded)
        print(f"{package.package} {package.version}: {len(of_package)} sites", file=sys.stderr, flush=True)
        sites += of_package
        dropped += excluded_here
    write_jsonl(arguments.out, (site.to_dict() for site in sites))
    kinds = ", ".join(
        f"{kind} {count}" for kind, count in sorted(Counter(site.kind for site in sites).items())
    )
    print(
        f"{len(sites)} sites ({kinds}); {dropped} left out because a task repairs the same line",
        file=sys.stderr,
    )


if __name__ == "__main__":
    run_script(main)
