"""Print how often a policy writes the exact repair: sampled at temperature 1, and its likeliest reply."""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import dump_json
from lightning_smith.miniature.tasks.table import load_sources, load_tasks


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="policy folder")
    parser.add_argument(
        "--tasks", type=Path, required=True, help="folder of train.jsonl, heldout.jsonl and tests.json"
    )
    parser.add_argument("--role", default="heldout", help="which tasks: heldout (default) or train")
    parser.add_argument(
        "--sources", type=Path, required=True, help="table of source distributions (sources.tsv)"
    )
    parser.add_argument("--sdists", type=Path, required=True, help="folder with the sdists of these tasks")
    parser.add_argument(
        "--samples", type=whole(1), default=4, help="replies a task at temperature 1 (default 4)"
    )
    parser.add_argument("--seed", type=whole(0), default=0, help="seed of the draws (default 0)")
    parser.add_argument("--threads", type=whole(1), default=1, help="CPU threads (default 1)")
    arguments = parser.parse_args(argv)
    # After the arguments: --help works in every environment.
    import torch

    from lightning_smith.miniature.policy.sampling import Sampler
    from lightning_smith.miniature.policy.scoring import edit_tasks, exact_repairs

    torch.set_num_threads(arguments.threads)

    rows = load_tasks(arguments.tasks, arguments.role)
    tasks = edit_tasks(rows, load_sources(arguments.sources), arguments.sdists)
    if not tasks:
        raise UserError(f"{arguments.tasks} holds no {arguments.role} task that one edit repairs")
    sampler = Sampler(arguments.model, torch.float32)
    sampled = exact_repairs(sampler, tasks, arguments.samples, 1.0, arguments.seed)
    likeliest = exact_repairs(sampler, tasks, 1, 0.0, arguments.seed)
    by_kind: dict[str, list[float]] = defaultdict(list)
    for name, task in tasks.items():
        by_kind[task.kind].append(sampled[name] / arguments.samples)
    report = {
        "tasks": len(tasks),
        "samples": arguments.samples,
        "temperature_1": round(sum(sampled.values()) / len(tasks) / arguments.samples, 4),
        "temperature_0": round(sum(likeliest.values()) / len(tasks), 4),
        "temperature_1_by_kind": {kind: round(sum(v) / len(v), 4) for kind, v in sorted(by_kind.items())},
    }
    print(dump_json(report, indent=1))


if __name__ == "__main__":
    run_script(main)
