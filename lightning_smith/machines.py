"""What the machines of the experiment must have, and whether this one does.

Every rule names its machine in the resource `machine`; a profile may map it to another one (the miniature maps all
to `laptop`). The check runs once, before the first job, over the jobs that are about to run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from lightning_smith.backends import need, refuse_missing, refuse_unlike
from lightning_smith.errors import UserError
from lightning_smith.rollout.bwrap import check_sandbox

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
    """What Machine A lacks: a Docker daemon that answers, and a Kubernetes configuration."""
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
    """What a machine that prepares images lacks: a Docker daemon that can be used."""
    from lightning_smith.images.daemon import DockerError, connect

    try:
        connect(timeout_s=60).close()
    except DockerError as error:
        return str(error)
    return None


def lacks_b() -> str | None:
    """What Machine B lacks: its GPUs."""
    gpus = count_gpus()
    return None if gpus >= GPUS_OF_B else f"{gpus} NVIDIA GPUs of {GPUS_OF_B}"


def lacks_laptop() -> str | None:
    """What a machine for the miniature lacks: Linux."""
    return None if os.uname().sysname == "Linux" else f"{os.uname().sysname} instead of Linux"


MACHINES: dict[str, tuple[str, str, Callable[[], str | None]]] = {
    "A": ("machine A (Docker and Kubernetes)", "k8s", lacks_a),
    "B": (f"machine B ({GPUS_OF_B} B200 GPUs)", "b200", lacks_b),
    "docker": ("a machine with Docker", "k8s", lacks_docker),
    "laptop": ("any Linux machine", "mini", lacks_laptop),
    "any": ("any machine", "mini", lambda: None),
}
"""By the value of the resource: description, profile, and what checks this host."""


def check_host(
    jobs: Sequence[Mapping[str, str]], targets: Iterable[str], backends: Mapping[str, str]
) -> None:
    """Raise UserError if the jobs about to run cannot run on this host or in this version.

    `jobs` are mappings with `rule` and `machine`; `targets` are what the user asked for.
    """
    rules = {job["rule"] for job in jobs}
    refuse_wrong_machine(jobs, targets)
    refuse_missing(rules, backends)
    refuse_unlike(rules, backends)
    if need("bwrap", rules, backends):
        check_sandbox()
    if need("docker", rules, backends) and (lack := lacks_docker()):
        raise UserError(lack)


def refuse_wrong_machine(jobs: Iterable[Mapping[str, str]], targets: Iterable[str]) -> None:
    """Raise UserError if this host lacks what a job about to run needs.

    `jobs` are mappings with `rule` and `machine`; `targets` are what the user asked for.
    """
    wanted = " ".join(targets)
    rules_by_machine: dict[str, set[str]] = {}
    for job in jobs:
        rules_by_machine.setdefault(job["machine"], set()).add(job["rule"])
    refusals: list[str] = []
    # The machine of the target itself first: B trains what A prepared.
    for machine, rules in sorted(rules_by_machine.items(), reverse=True):
        if machine not in MACHINES:
            raise UserError(
                f"resource machine={machine!r} of rule {min(rules)} is none of {', '.join(MACHINES)}: correct it in "
                "the profile's set-resources"
            )
        description, profile, check = MACHINES[machine]
        if lack := check():
            command = f"snakemake --profile {profile} {wanted}".rstrip()
            refusals.append(
                f"{', '.join(sorted(rules))} must run on {description} with `{command}`, and this host has {lack}"
            )
    if refusals:
        raise UserError("; ".join(refusals) + "; the miniature runs here: `uv run snakemake --profile mini`")
