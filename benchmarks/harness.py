"""What the harness adds to a command, a rollout and a grading, beside mini-swe-agent's Docker environment.

    uv run python benchmarks/harness.py [--turns 60] [--rollouts 64]

Needs a Docker daemon (DOCKER_HOST) and uv, which fetches mini-swe-agent into an environment of its own. Each turn runs
`true` once in every way, one after the other, so that what else the machine does hits all of them alike. The image is
the one of the end-to-end tests. Then so many rollouts run at once, each with a container of its own: look, edit, test,
diff and grading. The last line is one JSON object, medians throughout:

    turn_overhead_ms                  a turn of ContainerWorkspace less a bare `docker exec CONTAINER bash -c true`;
                                      below 0, since its executor is in the container already
    mini_swe_agent_turn_overhead_ms   a turn of its DockerEnvironment less the same `docker exec`
    bwrap_turn_overhead_ms            a turn of BwrapWorkspace less a bare `bwrap ... bash -c true`
    docker_exec_ms, bwrap_ms          the bare ones
    start_s                           ContainerWorkspace until its first command can run, seconds
    bwrap_start_s                     the same of BwrapWorkspace
    grade_overhead_s                  a grading in Docker less what its tests took, seconds
    bwrap_grade_overhead_s            the same in bubblewrap
    rollouts, rollouts_failed         how many at once, and how many of them failed for a reason not their own
    rollouts_s                        until the last one had its verdict, seconds
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.errors import UserError, run_script
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.store import GradeStore
from lightning_smith.grading.verdict import decide
from lightning_smith.images.daemon import connect
from lightning_smith.repositories.local import LocalImage
from lightning_smith.sandbox.bwrap import Bwrap
from lightning_smith.sandbox.container import ContainerWorkspace
from lightning_smith.sandbox.docker import DockerSandbox
from lightning_smith.sandbox.workspace import BwrapWorkspace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import docker_image  # noqa: E402
import tiny_image  # noqa: E402

MINI = "mini-swe-agent==2.4.6"
MINI_TURNS = """
import os, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # its log goes to standard output
from minisweagent.environments.docker import DockerEnvironment
environment = DockerEnvironment(
    image=sys.argv[1], cwd="/testbed", interpreter=["bash", "-c"], run_args=["--rm", "--network", "none"]
)
environment.execute({"command": "true"})
print(environment.container_id, file=answers, flush=True)
for line in sys.stdin:
    started_s = time.perf_counter()
    seen = environment.execute({"command": "true"})
    print(1000 * (time.perf_counter() - started_s), file=answers, flush=True)
    assert seen["returncode"] == 0, seen
"""
GRADINGS = 5


def timed_ms(action: Callable[[], Any]) -> float:
    """Milliseconds that an action takes."""
    started_s = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - started_s)


def bare_docker_exec(container: str) -> None:
    subprocess.run(["docker", "exec", container, "bash", "-c", "true"], check=True, stdin=subprocess.DEVNULL)


def bare_bwrap(sandbox: Bwrap, tree: Path) -> None:
    command = [str(sandbox.program), "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    command += ["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"]
    command += ["--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    command += ["--bind", str(tree), "/testbed", "--chdir", "/testbed", "bash", "-c", "true"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


@contextmanager
def mini_environment(image_name: str, scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """mini-swe-agent's environment in a process of its own, which runs a turn for each line that it reads."""
    environment = {
        **os.environ,
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(scratch / "mini"),
    }
    process = subprocess.Popen(
        ["uv", "run", "--quiet", "--no-project", "--with", MINI, "python", "-c", MINI_TURNS, image_name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(scratch / "mini.log").open("wb"),
        text=True,
        env=environment,
        cwd=scratch,
    )
    assert process.stdout is not None
    container = process.stdout.readline().strip()
    if not container:
        words = (scratch / "mini.log").read_text(errors="replace").strip().split("\n")[-1]
        raise UserError(f"{MINI} did not start in a container of {image_name} ({words})")
    try:
        yield process
    finally:
        process.communicate()
        subprocess.run(["docker", "rm", "--force", container], check=False, capture_output=True)


def mini_turn_ms(process: subprocess.Popen[str]) -> float:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def measure_turns(
    sandbox: DockerSandbox, image_name: str, bwrap: Bwrap, local: LocalImage, turns: int, scratch: Path
) -> dict[str, float]:
    image = sandbox.prepare(image_name)
    with (
        ContainerWorkspace(sandbox, image, tiny_image.TASK, scratch / "docker") as ours,
        BwrapWorkspace(bwrap, local, tiny_image.TASK, scratch / "bwrap") as boxed,
        mini_environment(image_name, scratch) as theirs,
    ):
        ways: dict[str, Callable[[], float]] = {
            "docker_exec": lambda: timed_ms(lambda: bare_docker_exec(ours.container.name)),
            "docker": lambda: timed_ms(lambda: ours.execute("true", 60)),
            "mini": lambda: mini_turn_ms(theirs),
            "bwrap_bare": lambda: timed_ms(lambda: bare_bwrap(bwrap, boxed.tree)),
            "bwrap": lambda: timed_ms(lambda: boxed.execute("true", 60)),
        }
        seen = [{name: way() for name, way in ways.items()} for _ in range(turns + 1)][1:]
    return {name: median(turn[name] for turn in seen) for name in ways}


def measure_start_s(open_one: Callable[[int], Any]) -> float:
    found = []
    for number in range(GRADINGS):
        started_s = time.perf_counter()
        with open_one(number) as workspace:
            found.append(time.perf_counter() - started_s)
            workspace.execute("true", 60)
    return median(found)


def measure_grading_s(task: RolloutTask, image: Any, sandbox: Any, patch: bytes, scratch: Path) -> float:
    """Seconds of a grading beyond its tests; the patch is one that solves nothing, so that they run once."""
    found = []
    for number in range(GRADINGS):
        started_s = time.perf_counter()
        run = run_tests(task, image, patch, GradeStore(scratch / str(number)), sandbox, timeout_s=120)
        found.append(time.perf_counter() - started_s - run.wall_s)
    return median(found)


def roll_out(
    sandbox: DockerSandbox, image_name: str, task: RolloutTask, store: GradeStore, scratch: Path
) -> str:
    """One rollout; empty, or what went wrong that is not its own doing."""
    note = f"echo {scratch.name} >> README"  # else equal patches would be graded once
    try:
        image = sandbox.prepare(image_name)
        with ContainerWorkspace(sandbox, image, task.instance_id, scratch) as workspace:
            for command in ("ls; cat src/widget/core.py", tiny_image.FIX, note, "python -m pytest -q"):
                seen = workspace.execute(command, 120)
                if seen.stopped:
                    return f"{command!r} {seen.stopped}"
            patch = workspace.diff()
        run = run_tests(task, image, patch, store, sandbox, timeout_s=120)
    except UserError as error:
        return str(error)
    return "" if decide(task, run) is Outcome.SOLVED else f"not solved: {run.log.decode()[-500:]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--rollouts", type=int, default=64)
    args = parser.parse_args()
    task = RolloutTask.from_row(tiny_image.row())
    with connect() as daemon, tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        image_name = docker_image.build(daemon, scratch)
        try:
            local = LocalImage.open(tiny_image.build(scratch / "local"))
            bwrap = Bwrap.find(tiny_image.TESTBED_PYTHON)
            sandbox = DockerSandbox.find(daemon, scratch / "copies")
            image = sandbox.prepare(image_name)
            turns = measure_turns(sandbox, image_name, bwrap, local, args.turns, scratch)
            start_s = measure_start_s(
                lambda number: ContainerWorkspace(sandbox, image, tiny_image.TASK, scratch / f"d{number}")
            )
            bwrap_start_s = measure_start_s(
                lambda number: BwrapWorkspace(bwrap, local, tiny_image.TASK, scratch / f"b{number}")
            )
            with BwrapWorkspace(bwrap, local, tiny_image.TASK, scratch / "edit") as workspace:
                workspace.execute("echo more >> README", 60)
                patch = workspace.diff()
            grade_s = measure_grading_s(task, image, sandbox, patch, scratch / "docker grades")
            bwrap_grade_s = measure_grading_s(task, local, bwrap, patch, scratch / "bwrap grades")
            store = GradeStore(scratch / "store")
            started_s = time.perf_counter()
            with ThreadPoolExecutor(args.rollouts) as pool:
                folders = (scratch / f"r{number}" for number in range(args.rollouts))
                wrong = list(
                    pool.map(lambda place: roll_out(sandbox, image_name, task, store, place), folders)
                )
            rollouts_s = time.perf_counter() - started_s
        finally:
            docker_image.remove_imported(daemon)
    failed = [reason for reason in wrong if reason]
    for reason in failed:
        print(f"failed: {reason}", file=sys.stderr)
    docker_ms, bwrap_ms = turns["docker"] - turns["docker_exec"], turns["bwrap"] - turns["bwrap_bare"]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, {args.turns} turns")
    figures = {
        "turn_overhead_ms": docker_ms,
        "mini_swe_agent_turn_overhead_ms": turns["mini"] - turns["docker_exec"],
        "bwrap_turn_overhead_ms": bwrap_ms,
        "docker_exec_ms": turns["docker_exec"],
        "bwrap_ms": turns["bwrap_bare"],
        "start_s": start_s,
        "bwrap_start_s": bwrap_start_s,
        "grade_overhead_s": grade_s,
        "bwrap_grade_overhead_s": bwrap_grade_s,
        "rollouts": args.rollouts,
        "rollouts_failed": len(failed),
        "rollouts_s": rollouts_s,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    if failed:
        raise UserError(f"{len(failed)} of {args.rollouts} rollouts failed for a reason not their own")


if __name__ == "__main__":
    run_script(main)
