"""Prepare every image that data sets name: pulled, with the agent layer, proved, tagged `<image>:openai`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from lightning_smith.config.stages import ImageSources, ImageStage
from lightning_smith.core.arguments import number, whole
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.core.files import write_atomic
from lightning_smith.funnel.certify import image_certifier
from lightning_smith.images.preflight import check_daemon, check_space, plan_pulls
from lightning_smith.images.prepare import prepare_all, table
from lightning_smith.images.tools import preparation, tools
from lightning_smith.release.image_lists import needed
from lightning_smith.repositories.names import ORGANISATIONS, registry_place


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Options about where images come from."""
    parser.add_argument(
        "--organisation", action="append", help="where an image is looked for if its own name is not there"
    )
    parser.add_argument(
        "--mirror", type=registry_place, help="host[:port][/prefix] that stands before Docker Hub"
    )
    parser.add_argument(
        "--min-mb-per-s",
        type=number(0, above=True),
        default=0.5,
        help="a slower pull is given up (%(default)s)",
    )


def add_layer_options(parser: argparse.ArgumentParser) -> None:
    """Options about the agent layer, and where images go."""
    parser.add_argument(
        "--agent-python",
        default="3.12.15",
        help="version for uv, or path of an interpreter (%(default)s)",
    )
    parser.add_argument(
        "--agent", type=Path, default=Path("work/agent"), help="folder of the built layer (%(default)s)"
    )
    parser.add_argument(
        "--push-to", type=registry_place, help="host[:port][/prefix] of the registry that the nodes pull from"
    )


def add_certify_options(parser: argparse.ArgumentParser) -> None:
    """Options about the tasks that are graded in each image as a part of its proof."""
    parser.add_argument(
        "--certify-tasks",
        type=whole(0),
        default=0,
        help="tasks of each SWE-smith image whose gold patch, and no patch at all, are graded (%(default)s)",
    )
    parser.add_argument("--tests", default="smith", help="backends.tests (default %(default)s)")
    parser.add_argument(
        "--grading-timeout",
        type=number(0, above=True),
        default=600,
        help="processor seconds of one test run (%(default)s)",
    )
    parser.add_argument(
        "--scratch", type=Path, default=Path("work/certify"), help="where trees go (%(default)s)"
    )


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset",
        type=Path,
        action="append",
        help="tasks (.jsonl or .parquet); may be given several times (data/train_dataset_mixed.jsonl and "
        "data/val_dataset_filtered.jsonl)",
    )
    parser.add_argument(
        "--image", action="append", help="only this image of the data sets; may be given several times"
    )
    parser.add_argument("--limit", type=whole(1), help="only the first so many tasks of each data set")
    parser.add_argument("--max-workers", type=whole(1), default=4, help="images side by side (%(default)s)")
    parser.add_argument(
        "--pull-missing",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="pull images that the daemon lacks",
    )
    parser.add_argument("--force-build", action="store_true", help="make the agent layer's images again")
    parser.add_argument(
        "--out", type=Path, default=Path("data/images"), help="folder of the manifests (%(default)s)"
    )
    add_source_options(parser)
    add_layer_options(parser)
    add_certify_options(parser)
    return parser.parse_args(argv)


def retry_command(argv: list[str], images: Iterable[str]) -> str:
    """Return the same command for these images alone."""
    kept = [word for n, word in enumerate(argv) if "--image" not in (word, argv[n - 1] if n else "")]
    named = [part for name in sorted(images) for part in ("--image", name)]
    return shlex.join(["python", "scripts/images/pull_images.py", *kept, *named])


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    datasets = args.dataset or [
        Path(f"data/{n}.jsonl") for n in ("train_dataset_mixed", "val_dataset_filtered")
    ]
    names = list(needed(datasets, args.image, args.limit).values())
    sources = ImageSources(
        organisations=tuple(args.organisation or ORGANISATIONS[:2]),
        mirror=args.mirror,
        min_mb_per_s=args.min_mb_per_s,
    )
    stage = ImageStage(
        agent=args.agent,
        agent_python=args.agent_python,
        push_to=args.push_to,
        certify_tasks=args.certify_tasks,
        grading_timeout_s=args.grading_timeout,
        tests=args.tests,
        tasks=tuple(datasets),
        scratch=args.scratch,
    )
    with tools(sources, len(names)) as found:
        about = check_daemon(found.daemon)
        found.daemon.sweep()
        plan = plan_pulls(found.puller, names, found.known, parallel=args.max_workers)
        free = check_space(found.daemon, plan, Path(about["root"]))
        print(f"[images] {plan.sentence()}; {free}", file=sys.stderr, flush=True)
        if not args.pull_missing and (plan.missing or plan.unavailable):
            lacking = ", ".join([*plan.missing, *plan.unavailable])
            raise UserError(f"the daemon lacks {lacking}: run without --no-pull-missing")
        found.puller.planned = plan.missing
        prepared = preparation(stage, found, args.out, image_certifier(found.daemon, stage))
        outcome = prepare_all(
            [name for name in names if name not in plan.unavailable],
            lambda name: prepared.prepare(name, force=args.force_build),
            parallel=args.max_workers,
            stop=found.stop,
            report=lambda name, manifest, reason: found.progress.note(
                f"{name}: {reason}"
                if manifest is None
                else f"{name}: ready as {manifest['image']['tags'][1]}"
            ),
            alive=lambda: check_daemon(found.daemon),
        )
    write_atomic(args.out.with_suffix(".tsv"), table(outcome.manifests.values()))
    failures = {**plan.unavailable, **outcome.failures}
    if failures:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in sorted(failures.items()))
        raise UserError(
            f"{len(failures)} of {len(names)} images could not be prepared:{reasons}\n"
            f"try just these again: {retry_command(argv or sys.argv[1:], failures)}"
        )
    print(f"[images] {len(names)} of {len(names)} images are ready", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_script(main)
