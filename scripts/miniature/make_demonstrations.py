"""Make the warm start's demonstrations from the pinned source distributions of role `demo`.

Every package gives at most --per-package sites, so that no single one sets the style of the code.
A line that also stands in a package of role `heldout` is never shown, so that no repair asked for in
the evaluation has been seen. The result depends on the sdists (by hash) and on this repository alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_jsonl
from lightning_smith.miniature.policy.demonstrations import Site, collect, lines_of_package, lines_of_tasks
from lightning_smith.miniature.tasks.table import load_sources
from lightning_smith.repositories.tree_files import read_sdist


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sources", type=Path, required=True, help="table of source distributions (sources.tsv)"
    )
    parser.add_argument(
        "--sdists", type=Path, required=True, help="folder with the sdists of roles demo and heldout"
    )
    parser.add_argument("--out", type=Path, required=True, help="demonstrations file to write (JSON lines)")
    parser.add_argument(
        "--per-package", type=whole(1), default=1000, help="most sites of one package (default 1000)"
    )
    parser.add_argument(
        "--exclude-lines", type=Path, help="tasks file whose repaired lines are not to be shown either"
    )
    arguments = parser.parse_args(argv)

    sources = load_sources(arguments.sources)
    excluded: set[str] = lines_of_tasks(arguments.exclude_lines) if arguments.exclude_lines else set()
    for source in sources:
        if source.role == "heldout":
            files = read_sdist(arguments.sdists / source.filename, source.sha256)
            excluded |= lines_of_package(files, source.source)
    sites: list[Site] = []
    dropped = 0
    for source in sources:
        if source.role == "demo":
            files = read_sdist(arguments.sdists / source.filename, source.sha256)
            found, excluded_here = collect(source, files, arguments.per_package, excluded)
            print(f"{source.package} {source.version}: {len(found)} sites", file=sys.stderr, flush=True)
            sites += found
            dropped += excluded_here
    if not sites:
        raise UserError(f"{arguments.sources} has no row of role demo: restore it with git")
    write_jsonl(arguments.out, (site.to_dict() for site in sites))
    kinds = ", ".join(
        f"{kind} {count}" for kind, count in sorted(Counter(site.kind for site in sites).items())
    )
    print(
        f"{len(sites)} sites ({kinds}); {dropped} left out: their line is in a held-out package",
        file=sys.stderr,
    )


if __name__ == "__main__":
    run_script(main)
