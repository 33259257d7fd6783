"""Create one of the locked environments under envs/ and write what it holds."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_json
from lightning_smith.workflow.environments import create


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--project", type=Path, required=True, help="folder with pyproject.toml and uv.lock")
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON with Python version, packages and lock hash"
    )
    args = parser.parse_args(argv)
    write_json(args.out, create(args.project))


if __name__ == "__main__":
    run_script(main)
