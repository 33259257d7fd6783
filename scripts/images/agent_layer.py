"""Build /opt/agent as one layer for all images."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.images.layer import FAMILY, build_layer

NAME = f"layer-{FAMILY}.json"


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="version for uv, or path of an interpreter")
    parser.add_argument("--out", type=Path, required=True, help=f"{NAME}; the layer lies beside it")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    if args.out.name != NAME:
        raise UserError(f"--out must end in {NAME}, where others look for the layer")
    layer = build_layer(args.out.parent, python=args.python, project=REPOSITORY / "envs/agent")
    about = f"{layer.bytes / 1e6:.0f} MB, Python {layer.python}, openai {layer.packages['openai']}"
    print(f"[agent layer] {layer.diff_id}: {about}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_script(main)
