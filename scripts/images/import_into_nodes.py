"""Import prepared images into the containerd of nodes, only what each lacks, and verify what it then has."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lightning_smith.core.arguments import number
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.tables import write_table
from lightning_smith.images.containerd import COLUMNS, Imported, Node, import_images
from lightning_smith.images.daemon import connect
from lightning_smith.images.prepare import read_manifest
from lightning_smith.images.pull import STALL_S


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--manifests", type=Path, nargs="+", required=True, help="manifests of prepare_image.py"
    )
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        help="command line of a node's containerd, such as 'ssh node1 sudo ctr -n k8s.io'; may be given several times",
    )
    parser.add_argument(
        "--min-mb-per-s",
        type=number(0, above=True),
        default=0.5,
        help="a slower import is given up (%(default)s)",
    )
    parser.add_argument("--out", type=Path, required=True, help="table of what the nodes have")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if not args.node:
        raise UserError("images.import_into names no node: give the command line of each node's containerd")
    manifests = [read_manifest(path) for path in args.manifests]
    with connect(STALL_S) as daemon, ThreadPoolExecutor(len(args.node)) as pool:

        def one(command: str) -> Imported:
            def report(text: str) -> None:
                print(f"[images] {command}: {text}", file=sys.stderr, flush=True)

            try:
                return import_images(
                    daemon,
                    Node(command),
                    manifests,
                    min_bytes_per_s=args.min_mb_per_s * 1e6,
                    report=report,
                )
            except UserError as error:
                return Imported([], {"every image": str(error)})

        done = dict(zip(args.node, pool.map(one, args.node), strict=True))
    failures = [
        f"\n  {command}: {name}: {reason}"
        for command, i in done.items()
        for name, reason in i.failures.items()
    ]
    if failures:
        raise UserError(
            f"{len(failures)} images could not be imported:{''.join(failures)}\nrun the same command again to try "
            "just these"
        )
    write_table(args.out, COLUMNS, (row for imported in done.values() for row in imported.rows))
    print(f"[images] {len(manifests)} images are at {len(args.node)} nodes", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_script(main)
