"""Make the miniature's committed tasks from nothing: one-line bugs in small packages, and what they break.

    uv sync --frozen --project envs/testbed
    uv run --frozen --project envs/smith python scripts/miniature/make_tasks.py \\
        --sdists work/sdists --work work/tasks --out assets/miniature/tasks

The sdists come from scripts/miniature/fetch_sdist.py. A run that was stopped goes on when it is started again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.miniature.tasks.generate import Limits, make_tasks
from lightning_smith.miniature.tasks.table import Source, load_left_out, load_sources


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    limits = Limits()
    parser.add_argument(
        "--sources", type=Path, default=Path("assets/miniature/sources.tsv"), help="pinned sdists"
    )
    parser.add_argument(
        "--left-out",
        type=Path,
        default=Path("assets/miniature/left_out.tsv"),
        help="instance ids of bugs that are not tried",
    )
    parser.add_argument("--sdists", type=Path, required=True, help="folder of the fetched sdists")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of logs and trees, kept for the next run"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("assets/miniature/tasks"), help="folder of the result"
    )
    parser.add_argument("--jobs", type=whole(1), default=1, help="test runs at a time")
    parser.add_argument("--role", choices=["train", "heldout"], help="only the packages of this role")
    parser.add_argument("--packages", help="only these packages, separated by commas")
    parser.add_argument(
        "--train-tries", type=whole(0), default=limits.train, help="bugs tried a train package"
    )
    parser.add_argument(
        "--heldout-tries", type=whole(0), default=limits.heldout, help="bugs tried a held-out package"
    )
    parser.add_argument(
        "--whole-suite-tries",
        type=whole(0),
        default=limits.whole_suite,
        help="bugs tried with more than 200 tests",
    )
    parser.add_argument(
        "--no-confirm", action="store_true", help="leave out the second run of each valid bug"
    )
    parser.add_argument("--blank", type=whole(0), default=18, help="train rows whose statement holds nothing")
    parser.add_argument("--branchless", type=whole(0), default=12, help="train rows without a branch")
    parser.add_argument(
        "--testbed-python",
        type=Path,
        default=Path("envs/testbed/.venv/bin/python"),
        help="what runs the tests",
    )
    return parser.parse_args(argv)


def chosen_sources(sources: list[Source], role: str | None, packages: str | None) -> list[Source]:
    """Sources with tests, restricted to a role and to named packages."""
    chosen = [source for source in sources if source.role in ([role] if role else ["train", "heldout"])]
    if packages is None:
        return chosen
    names = packages.split(",")
    unknown = sorted(set(names) - {source.package for source in chosen})
    if unknown:
        raise UserError(f"sources.tsv has no package {unknown[0]} of this role: check --packages and --role")
    return [source for source in chosen if source.package in names]


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    counts = make_tasks(
        chosen_sources(load_sources(args.sources), args.role, args.packages),
        sdists=args.sdists,
        work=args.work,
        out=args.out,
        testbed_python=args.testbed_python,
        jobs=args.jobs,
        limits=Limits(args.train_tries, args.heldout_tries, args.whole_suite_tries),
        confirm=not args.no_confirm,
        blank=args.blank,
        branchless=args.branchless,
        left_out=load_left_out(args.left_out),
    )
    print(", ".join(f"{count} {role} tasks" for role, count in counts.items()) + f" in {args.out}")


if __name__ == "__main__":
    run_script(main)
