"""What the machines of the experiment must have, and whether this one does.

Every rule names its machine in the resource `machine`; a profile may map it to another one (the miniature maps all
to `laptop`). The check runs once, before the first job, over the jobs that are about to run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from lightning_smith.config.backends import missing_backends, need, refuse_missing, refuse_unlike
from lightning_smith.core.errors import UserError
from lightning_smith.sandbox.bwrap import check_sandbox

GPUS_OF_B = 4
"""GPUs of Machine B: the published node has four B200."""


def count_gpus() -> int:
    """NVIDIA GPUs that `nvidia-smi` lists; 0 where there is no driver."""
    if not shutil.which("nvidia-smi"):
        return 0
    listing = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    return (
        sum(line.startswith("GPU ") for line in listing.stdout.splitlines()) if listing.returncode == 0 else 0
    )


def lacks_a() -> str | None:
    """Return what Machine A lacks: a Docker daemon that answers, and a Kubernetes configuration."""
    docker = shutil.which("docker")
    if not docker:
        return "no docker command"
    answer = subprocess.run(
        [docker, "version", "--format", "{{.Server.Version}}"], capture_output=True, timeout=60
    )
    if answer.returncode != 0:
        return "no Docker daemon that answers"
    kubeconfig = os.environ.get("KUBECONFIG", str(Path.home() / ".kube" / "config"))
    if not any(Path(path).is_file() for path in kubeconfig.split(os.pathsep)):
        return f"no Kubernetes configuration ({kubeconfig})"
    return None


def lacks_docker() -> str | None:
    """Return what a machine that prepares images lacks: a Docker daemon that can be used."""
    from lightning_smith.images.daemon import DockerError, connect

    try:
        connect(timeout_s=60).close()
    except DockerError as error:
        return str(error)
    return None


def lacks_b() -> str | None:
    """Return what Machine B lacks: its GPUs."""
    gpus = count_gpus()
    return None if gpus >= GPUS_OF_B else f"{gpus} NVIDIA GPUs of {GPUS_OF_B}"


def lacks_laptop() -> str | None:
    """Return what a machine for the miniature lacks: Linux."""
    return None if os.uname().sysname == "Linux" else f"{os.uname().sysname} instead of Linux"


MACHINES: dict[str, tuple[str, str, Callable[[], str | None]]] = {
    "A": ("machine A (Docker and Kubernetes)", "k8s", lacks_a),
    "B": (f"machine B ({GPUS_OF_B} B200 GPUs)", "b200", lacks_b),
    "docker": ("a machine with Docker", "k8s", lacks_docker),
    "laptop": ("any Linux machine", "mini", lacks_laptop),
    "any": ("any machine", "mini", lambda: None),
}
"""By the value of the resource: description, profile, and what checks this host."""


@dataclass(frozen=True)
class PlannedJob:
    """A job that is about to run."""

    rule: str
    machine: str
    """Value of its resource: a key of `MACHINES`."""
    after: tuple[int, ...] = ()
    """Places in the list of planned jobs of those that must end before it."""
    outputs: tuple[str, ...] = ()
    repeated: bool = False
    """Whether its rule has wildcards, so that the rule's name is no target."""


@dataclass(frozen=True)
class Request:
    """What a user has typed, and where the configuration puts files."""

    targets: tuple[str, ...]
    """Rules and files."""
    flags: tuple[str, ...]
    """--configfile and --config with their values."""
    folders: tuple[str, ...]
    """What is brought from machine to machine: the folders of data and results."""
    exports: str
    """The folder of exported checkpoints, which predictions read."""
    sums: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By target: the files that it still has to make of a rule with wildcards."""
    with_docker: str = "k8s"
    """Profile of what needs Docker alone: the miniature's where every stage runs on one machine."""


def check_host(jobs: Sequence[PlannedJob], request: Request, backends: Mapping[str, str]) -> None:
    """Raise UserError if the jobs about to run cannot run on this host or in this version."""
    rules = {job.rule for job in jobs}
    try:
        refuse_wrong_machine(jobs, request)
    except UserError as error:
        lacking = missing_backends(rules, backends)
        said = [str(error), *([_not_built(lacking)] if lacking else []), _ELSE]
        raise UserError("; ".join(said)) from None
    refuse_missing(rules, backends)
    refuse_unlike(rules, backends)
    if need("bwrap", rules, backends):
        check_sandbox()
    if need("docker", rules, backends) and (lack := lacks_docker()):
        raise UserError(f"{lack}; {_ELSE}")


def _not_built(lacking: Mapping[tuple[str, str], Sequence[str]]) -> str:
    """Return a clause that says which backends no machine has yet, and which rules are refused everywhere for it."""
    rules = sorted(set(chain.from_iterable(lacking.values())))
    absent = ", ".join(f"backends.{key}={value}" for key, value in lacking)
    return f"{', '.join(rules)} will be refused there too, since this version does not have {absent} yet"


_ELSE = "the miniature without Docker runs here: `uv run snakemake --profile mini`"


def refuse_wrong_machine(jobs: Sequence[PlannedJob], request: Request) -> None:
    """Raise UserError if this host lacks what a job about to run needs, with what to run where, in order."""
    for job in jobs:
        if job.machine not in MACHINES:
            raise UserError(
                f"resource machine={job.machine!r} of rule {job.rule} is none of {', '.join(MACHINES)}: correct it in "
                "the profile's set-resources"
            )
    found = {machine: MACHINES[machine][2]() for machine in sorted({job.machine for job in jobs})}
    lacking = {machine: lack for machine, lack in found.items() if lack}
    if not lacking:
        return
    if "A" in lacking:
        lacking.pop("docker", None)  # for the same reason
    parts = [
        f"{', '.join(sorted({job.rule for job in jobs if job.machine == machine}))} must run on "
        f"{MACHINES[machine][0]} (here: {lack})"
        for machine, lack in lacking.items()
    ]
    steps = steps_of(jobs, request)
    numbered = [f"({n}) {step}" for n, step in enumerate(steps, 1)] if len(steps) > 1 else steps
    raise UserError(f"{'; '.join(parts)}; {'; '.join(numbered)}")


def steps_of(jobs: Sequence[PlannedJob], request: Request) -> list[str]:
    """Return what to run on which machine, in order, and what to bring there, one clause a machine."""
    phases = _phases(jobs, request.with_docker)
    order = sorted({phase for phase in phases if phase.profile})
    steps: list[str] = []
    for phase in order:
        mine = [job for job, its in zip(jobs, phases, strict=True) if its == phase]
        machines = {job.machine for job in mine} & {"A", "B", "docker", "laptop"}
        where = MACHINES["A" if "A" in machines else min(machines)][0]
        last = phase.level == order[-1].level
        targets = request.targets if last else _boundary(jobs, phases, phase, request.sums)
        if not targets:
            continue
        command = ["uv", "run", "snakemake", "--profile", phase.profile, *request.flags, "--", *targets]
        brought = ""
        if steps:
            folders = [*request.folders]
            folders += [request.exports] if any(job.rule == "predict" for job in mine) else []
            brought = f"bring {', '.join(folders)} there with their times (`rsync -aR`), and "
        steps.append(f"on {where}: {brought}run `{shlex.join(command)}`")
    return steps


@dataclass(frozen=True, order=True)
class _Phase:
    """A stretch of the work that one machine does without another's help."""

    level: int
    """How many changes of machine come before it."""
    profile: str
    """Empty for jobs that need no machine and wait for none that does."""


def _phases(jobs: Sequence[PlannedJob], with_docker: str) -> list[_Phase]:
    """Return the phase of each job; one that runs anywhere runs where the last one that it waits for did."""
    phases: dict[int, _Phase] = {}

    def phase(place: int) -> _Phase:
        if place not in phases:
            job = jobs[place]
            before = max(map(phase, job.after), default=_Phase(0, ""))
            level = {p.profile for p in map(phase, job.after) if p.profile and p.level == before.level}
            profile = {"any": "", "docker": with_docker}.get(job.machine, MACHINES[job.machine][1])
            if not profile:
                phases[place] = before
            elif level <= {profile}:
                phases[place] = _Phase(before.level, profile)
            else:
                phases[place] = _Phase(before.level + 1, profile)
        return phases[place]

    return [phase(place) for place in range(len(jobs))]


def _boundary(
    jobs: Sequence[PlannedJob],
    phases: Sequence[_Phase],
    phase: _Phase,
    sums: Mapping[str, frozenset[str]],
) -> list[str]:
    """Targets of a phase: the last jobs of it that a later phase waits for, by rule, or by file where it has many.

    Files that are all that one of `sums` has to make are named by that.
    """
    wanted = {
        place
        for job, its in zip(jobs, phases, strict=True)
        if its.level > phase.level
        for place in job.after
        if phases[place] == phase
    }
    implied: set[int] = set()
    waiting = list(wanted)
    while waiting:
        before = [place for place in jobs[waiting.pop()].after if place not in implied]
        implied.update(before)
        waiting += before
    last = [jobs[place] for place in sorted(wanted - implied)]
    targets = dict.fromkeys(job.outputs[0] if job.repeated else job.rule for job in last)
    for name, files in sums.items():
        if files and files <= set(targets):
            targets = dict.fromkeys(name if target in files else target for target in targets)
    return list(targets)
