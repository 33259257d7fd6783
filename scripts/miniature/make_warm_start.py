"""Train the miniature's dense warm start from random weights, by steps alone.

A killed run goes on from its last checkpoint under --work when the same command is given again.
Finished stages stay there; make_moe_warm_start.py starts from `4-choosing`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import run_script


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--demonstrations", type=Path, required=True, help="file made by make_demonstrations.py"
    )
    parser.add_argument("--out", type=Path, required=True, help="policy folder to write")
    parser.add_argument("--work", type=Path, required=True, help="folder for finished stages and checkpoints")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda; the weights depend on it")
    parser.add_argument(
        "--threads", type=whole(1), default=1, help="CPU threads; the weights depend on it (default 1)"
    )
    arguments = parser.parse_args(argv)
    # After the arguments: --help works in every environment.
    import torch

    from lightning_smith.miniature.policy.warm_start import train_dense

    torch.set_num_threads(arguments.threads)
    train_dense(arguments.demonstrations, arguments.out, arguments.work, arguments.device)


if __name__ == "__main__":
    run_script(main)
