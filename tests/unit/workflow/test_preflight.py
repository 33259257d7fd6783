"""Configuration, machines, backends and the folder's lock: refused in one sentence, before anything starts."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_smith.config.backends import AVAILABLE, USED_BY, refuse_missing, refuse_unlike
from lightning_smith.config.checks import active_recipes, check_references
from lightning_smith.config.models import read_config
from lightning_smith.config.recipes import RolloutCorrection
from lightning_smith.config.stages import recipe_of
from lightning_smith.core.errors import UserError
from lightning_smith.core.run_lock import RunLock
from lightning_smith.workflow import machines

ROOT = Path(__file__).parents[3]
PUBLISHED = yaml.safe_load((ROOT / "config.yaml").read_text())


def laid_over(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    """`overlay` merged into `base` as Snakemake merges configuration files."""
    merged = copy.deepcopy(base)
    for key, value in overlay.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = laid_over(merged[key], value) if both else value
    return merged


@pytest.mark.parametrize("overlay", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_configuration_in_the_repository_is_valid(overlay: Path) -> None:
    mini = ROOT / "config/mini.yaml"  # which the others say that they are laid over
    merged = PUBLISHED
    for path in dict.fromkeys((mini, overlay)):
        merged = laid_over(merged, yaml.safe_load(path.read_text()))
    read_config(merged)
    check_references(merged)
    assert active_recipes(merged)


@pytest.mark.parametrize(
    "path", [ROOT / "config.yaml", *(ROOT / "config").glob("*.yaml")], ids=lambda path: path.stem
)
def test_no_two_recipes_share_a_mapping(path: Path) -> None:
    """Snakemake lays an overlay over the loaded objects: one that two recipes have would change in both."""
    recipes = yaml.safe_load(path.read_text()).get("recipes") or {}
    mappings = [
        value for recipe in recipes.values() if recipe for value in recipe.values() if isinstance(value, dict)
    ]
    assert len({id(value) for value in mappings}) == len(mappings)


def test_the_published_configuration_is_the_published_experiment() -> None:
    read_config(PUBLISHED)
    check_references(PUBLISHED)
    assert PUBLISHED["release"]["rows"] == 59136
    assert all(recipe["checkpoints"] == [64, 112, 176] for recipe in active_recipes(PUBLISHED).values())
    assert PUBLISHED["recipes"]["moe"]["router_replay"] is True


def set_key(config: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        config = config[parent]
    config[last] = value


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("probe.sampels", 4, "sampels"),
        ("colour", "red", "colour"),
        ("probe.samples", "4", "probe.samples"),
        ("probe.samples", 1, "probe.samples"),
        ("evaluation.temperature", -0.1, "evaluation.temperature"),
        ("backends.policy", "sglang", "backends.policy"),
        ("agent.instance_template", "Fix it.", "agent.instance_template"),
        ("dirs.work", "/", "dirs.work"),
        ("recipes.dense.policy", "missing", "recipes.dense.policy"),
        ("recipes.dense.checkpoints", [112, 64], "recipes.dense.checkpoints"),
        ("recipes.dense.evaluate", [0, 65], "step 65"),
        ("recipes.dense.save_every", 32, "save_every=32"),
        ("recipes.moe.evaluate", [64], r"recipes.moe.evaluate=\[64\] has nothing to compare with: add 0"),
        ("selection.validation_tasks", 0, "recipes.dense.validate_every=16"),
        ("recipes.dense.router_replay", True, "recipes.dense.router_replay"),
        ("recipes.moe.rollout_correction.level", "word", "recipes.moe"),
        ("recipes.moe.updates_per_step", 0, "recipes.moe"),
        ("recipes.moe.tasks_per_update", None, "recipes.moe: updates_per_step=2 needs tasks_per_update"),
        ("recipes.moe.tasks_per_update", 17, "recipes.moe: tasks_per_update=17 is more than a step has"),
        (
            "recipes.moe.turn_penalty",
            {"start": 9, "end": 9, "most": 0.1},
            "recipes.moe.turn_penalty: start=9 must be below end=9",
        ),
        ("verl.trainer nnodes", 2, "verl"),
        ("verl", {"ppo.epochs": 2}, "verl"),
        ("verl", {"trainer.save_freq": 32}, "verl sets trainer.save_freq, .* has the key save_every"),
        ("recipes.moe.verl", {"data.train_batch_size": 8}, "recipes.moe.verl sets .* the key tasks_per_step"),
        ("policies.dense.revision", "main", "policies.dense.revision"),
        ("probe.policy", "missing", "probe.policy"),
    ],
)
def test_a_wrong_key_or_value_is_named(path: str, value: Any, named: str) -> None:
    config = copy.deepcopy(PUBLISHED)
    set_key(config, path, value)
    with pytest.raises(UserError, match=named):
        read_config(config)
        check_references(config)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("async_rollouts", 24, "async_rollouts=24, and the miniature trains synchronously"),
        ("rollout_correction", {"level": "token", "threshold": 2.0, "bypass": False}, "rollout_correction"),
    ],
)
def test_what_the_trainer_lacks_is_refused_before_the_first_job(key: str, value: Any, named: str) -> None:
    """Not after hours of probing."""
    mini = laid_over(PUBLISHED, yaml.safe_load((ROOT / "config/mini.yaml").read_text()))
    mini["recipes"]["moe"][key] = value
    read_config(mini)
    with pytest.raises(UserError, match=f"recipe moe: {named}.*: set it to"):
        check_references(mini)


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    config = copy.deepcopy(PUBLISHED)
    config["policies"]["dense"] |= {"revision": 40 * "a", "model": str(tmp_path)}
    read_config(config)
    with pytest.raises(UserError, match=r"policies\.dense\.revision .* is a folder: set it to null"):
        check_references(config)


@pytest.mark.parametrize("name", list(PUBLISHED["recipes"]))
def test_a_recipe_is_carried_to_its_trainer_whole(name: str) -> None:
    """verl is told what all recipes share and what this one sets; another trainer is told neither."""
    own, shared = PUBLISHED["recipes"][name]["verl"], PUBLISHED["verl"]
    recipe = recipe_of(read_config(PUBLISHED), name)
    assert recipe.verl == {**shared, **own} and recipe.updates_per_step == 2 and recipe.tasks_per_update == 16
    correction = RolloutCorrection("token", 2.0, False) if name == "moe" else None
    assert recipe.rollout_correction == correction
    mini = laid_over(PUBLISHED, yaml.safe_load((ROOT / "config/mini.yaml").read_text()))
    if mini["recipes"][name]:
        assert recipe_of(read_config(mini), name).verl is None


def host(monkeypatch: pytest.MonkeyPatch, **lacks: str | None) -> None:
    """Make this host lack what `lacks` says, by machine."""

    def checker(lack: str | None) -> Callable[[], str | None]:
        return lambda: lack

    for name, lack in lacks.items():
        description, profile, _ = machines.MACHINES[name]
        monkeypatch.setitem(machines.MACHINES, name, (description, profile, checker(lack)))


REQUEST = machines.Request(("train_moe",), (), ("data", "results"), "work/export")


def test_the_wrong_machine_is_refused_with_the_command_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, B="0 NVIDIA GPUs of 4")
    jobs = [machines.PlannedJob("split", "any"), machines.PlannedJob("train_segment", "B", (0,))]
    with pytest.raises(UserError) as caught:
        machines.refuse_wrong_machine(jobs, REQUEST)
    sentence = str(caught.value)
    assert "train_segment must run on machine B (4 B200 GPUs) (here: 0 NVIDIA GPUs of 4)" in sentence
    assert "on machine B (4 B200 GPUs): run `uv run snakemake --profile b200 -- train_moe`" in sentence
    assert "\n" not in sentence


def test_what_another_machine_makes_first_is_asked_of_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host is machine A, and what it lacks is machine B: both commands are named, in order."""
    host(monkeypatch, A=None, B="0 NVIDIA GPUs of 4")
    jobs = [
        machines.PlannedJob("probe", "A"),
        machines.PlannedJob("split", "any", (0,)),
        machines.PlannedJob("train_segment", "B", (1,)),
    ]
    assert machines.steps_of(jobs, REQUEST) == [
        "on machine A (Docker and Kubernetes): run `uv run snakemake --profile k8s -- split`",
        "on machine B (4 B200 GPUs): bring data, results there with their times (`rsync -aR`), and run "
        "`uv run snakemake --profile b200 -- train_moe`",
    ]
    with pytest.raises(UserError, match=r"\(1\) on machine A .*; \(2\) on machine B .* -- train_moe`"):
        machines.refuse_wrong_machine(jobs, REQUEST)


def test_the_right_machine_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, A=None, B=None, laptop=None)
    jobs = [machines.PlannedJob("r", machine) for machine in ("A", "B", "laptop", "any")]
    machines.refuse_wrong_machine(jobs, REQUEST)


def test_what_no_machine_can_do_yet_is_said_beside_the_way_there(monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, A="no docker command", docker="no daemon")
    jobs = [machines.PlannedJob("prepare_image", "docker"), machines.PlannedJob("probe", "A", (0,))]
    request = machines.Request(("probe",), (), ("data", "results"), "work/export")
    with pytest.raises(UserError) as caught:
        machines.check_host(jobs, request, PUBLISHED["backends"])
    way, unbuilt, _ = str(caught.value).split("; ")[1:]
    assert way == "on machine A (Docker and Kubernetes): run `uv run snakemake --profile k8s -- probe`"
    assert unbuilt.startswith("probe will be refused there too") and "backends.workspace=pod" in unbuilt
    assert "no daemon" not in str(caught.value)


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(UserError, match="machine='C' of rule x"):
        machines.refuse_wrong_machine([machines.PlannedJob("x", "C")], REQUEST)


def test_gpus_are_counted_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: NVIDIA B200 (UUID: GPU-$i)"; done\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert machines.count_gpus() == 4
    assert machines.lacks_b() is None


def test_a_missing_backend_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match=r"rule probe .* backends\.\w+=\w+, which this version does not have"):
        refuse_missing(["probe"], PUBLISHED["backends"])


def test_what_the_grading_cannot_run_over_is_refused() -> None:
    backends = {"images": "docker", "tests": "smith", "harness": "docker"}
    with pytest.raises(UserError, match="rule grade grades the miniature's tasks alone"):
        refuse_unlike(["grade"], {**PUBLISHED["backends"], **backends})
    with pytest.raises(
        UserError, match=r"backends\.harness=docker and backends\.images=local: set backends\.images"
    ):
        refuse_unlike(["grade"], {**PUBLISHED["backends"], **backends, "tests": "image", "images": "local"})


def test_the_miniature_uses_only_backends_that_exist() -> None:
    mini = laid_over(PUBLISHED, yaml.safe_load((ROOT / "config" / "mini.yaml").read_text()))
    contained = laid_over(mini, yaml.safe_load((ROOT / "config" / "mini-docker.yaml").read_text()))
    for config in (mini, contained):
        refuse_missing(USED_BY, config["backends"])
        refuse_unlike(USED_BY, config["backends"])
    assert set(AVAILABLE) == set(mini["backends"])


def test_a_second_run_in_the_folder_is_refused_by_process_id(tmp_path: Path) -> None:
    code = (
        "import sys, time; from lightning_smith.core.run_lock import RunLock; lock = RunLock(sys.argv[1]);"
        "print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(UserError, match=f"process {holder.pid}"):
            RunLock(tmp_path)
    finally:
        holder.kill()
        holder.wait()
    RunLock(tmp_path).release()
