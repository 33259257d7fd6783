"""The miniature with Docker through the real rules: images made and prepared, and what runs in their containers."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator

import docker_image
import pytest
import tiny_image
import yaml
from tiny_workflow import Workflow, make_workflow

from lightning_smith.core.files import read_json, read_jsonl
from lightning_smith.funnel.ledger import read_funnel
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.docker import TEST_COMMAND_LABEL
from lightning_smith.images.layer import AgentLayer
from lightning_smith.images.pull import image_at
from lightning_smith.miniature.docker_images import SOURCE_LABEL
from lightning_smith.miniature.tasks.table import MiniTask, load_tasks

pytestmark = [pytest.mark.e2e, pytest.mark.whole_run, pytest.mark.timeout(900)]

TASKS = {"train": {"boltons": 2, "mistune": 2}, "heldout": {"semver": 2}}
"""How many tasks of which packages: those with the fewest tests, none of which measures
time. The code of the last two lies in a folder src."""

BASE = "ls-test/python"


@pytest.fixture(scope="module")
def contained(
    daemon: Daemon, built: AgentLayer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workflow]:
    """A clone that has these tasks alone and the agent layer, and a base image of this machine's programs."""
    before = _made(daemon)
    tree = docker_image.base_tree([name for name in docker_image.PROGRAMS.split() if name != "python"])
    docker_image.bare_python(tree, "usr/local")
    docker_image.import_image(daemon, tree, BASE)
    clone = make_workflow(tmp_path_factory, "contained", "config/mini-docker.yaml")
    shutil.copytree(built.tar.parent, clone.work / "agent", copy_function=shutil.copy)
    _keep_tasks(clone)
    config = clone.folder / "tests/data/contained.yaml"
    images = {"agent_python": str(tiny_image.TESTBED_PYTHON), "miniature_base": BASE}
    config.write_text(config.read_text() + yaml.safe_dump({"images": images}))
    yield clone
    docker_image.remove_images(daemon, _made(daemon) - before)


def _made(daemon: Daemon) -> set[str]:
    """Ids of images of the miniature, of whichever experiment, and of testbeds below them."""
    listed = daemon.api.images(filters={"label": SOURCE_LABEL}, all=True)
    return {image["Id"] for image in (*listed, *daemon.api.images("lightning-smith/testbed", all=True))}


def _timed(task: MiniTask) -> bool:
    words = ("quickly", "linear", "quadratically")
    return any(word in test for test in (*task.fail_to_pass, *task.pass_to_pass) for word in words)


def _keep_tasks(clone: Workflow) -> None:
    assets = clone.folder / "assets/miniature"
    for role, packages in TASKS.items():
        table = assets / "tasks" / f"{role}.jsonl"
        kept: list[str] = []
        for package, count in packages.items():
            tasks = [task for task in load_tasks(assets / "tasks", role) if task.package == package]
            usable = [task for task in tasks if task.branch and task.problem_statement and not _timed(task)]
            kept += [t.instance_id for t in sorted(usable, key=lambda task: task.test_count)[:count]]
        rows = [line for line in table.read_text().splitlines() if json.loads(line)["instance_id"] in kept]
        table.write_text("".join(f"{row}\n" for row in rows))
    wanted = {package for packages in TASKS.values() for package in packages}
    header, *sources = (assets / "sources.tsv").read_text().splitlines()
    rows = [row for row in sources if row.split("\t")[0] in wanted]
    (assets / "sources.tsv").write_text("".join(f"{row}\n" for row in (header, *rows)))


def test_images_are_made_and_prepared_once_and_again_only_where_altered(
    daemon: Daemon, contained: Workflow
) -> None:
    targets = ("prepare_images", "prepare_verified_images")
    run = contained.run(*targets)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "2 images, 2 at the daemon, 0 to pull" in run.stdout
    manifests = sorted((contained.data / "images").glob("*.json"))
    records = sorted((contained.work / "docker_images").glob("*.json"))
    assert [path.name for path in manifests] == [path.name for path in records] and len(records) == 3
    layers = []
    for manifest, record in zip(map(read_json, manifests), map(read_json, records), strict=True):
        name = manifest["image_name"]
        assert image_at(daemon, name) == record["image"]["id"] == manifest["base"]["id"]
        assert image_at(daemon, f"{name}:openai") == manifest["image"]["id"]
        about = daemon.api.inspect_image(f"{name}:openai")
        assert json.loads(about["Config"]["Labels"][TEST_COMMAND_LABEL])[:3] == ["python", "-m", "pytest"]
        layers.append(about["RootFS"]["Layers"])
        (packages,) = (v["packages"] for k, v in manifest["environment"].items() if "envs/testbed" in k)
        assert packages["pytest"] == "8.4.2"
        assert manifest["branches"] and all(
            re.sub("_1776_", "__", name.rpartition("x86_64.")[2]) in branch for branch in manifest["branches"]
        )
    assert len({tuple(each[:3]) for each in layers}) == 1, (
        "base and testbed are the same layers in all images"
    )
    assert all(len(each) == 5 for each in layers), "one layer for a repository, and one for the agent"

    again = contained.run(*targets)
    assert "Nothing to be done" in again.stdout + again.stderr
    stamps = {path: path.stat().st_mtime_ns for path in (*manifests, *records)}
    altered, removed, left = (read_json(path)["image_name"] for path in manifests)
    daemon.api.tag(altered, altered, "openai", force=True)
    daemon.api.tag(left, removed, "latest", force=True)
    again = contained.run(*targets)
    assert again.returncode == 0, again.stderr[-3000:]
    changed = {path for path, stamp in stamps.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {*manifests[:2], records[1]}
    assert image_at(daemon, removed) == read_json(records[1])["image"]["id"] != image_at(daemon, left)


def test_tasks_are_certified_probed_and_predicted_in_containers(contained: Workflow) -> None:
    predictions = contained.results.relative_to(contained.folder) / "eval/dense/step_0"
    graded = (f"{predictions}/counts.json", f"{predictions.parents[1]}/control_gold.json")
    run = contained.run("prepare_data", "probe", *graded)
    assert run.returncode == 0, run.stderr[-3000:]
    validated = list(read_jsonl(contained.data / "validation/0.jsonl"))
    assert Counter((row["patch"], row["outcome"]) for row in validated) == {
        ("gold", "solved"): 4,
        ("empty", "unsolved"): 4,
    }
    ids = {read_json(path)["image"]["id"] for path in (contained.work / "docker_images").glob("*.json")}
    assert {row["image_digest"] for row in validated} < ids
    assert read_funnel(contained.data / "funnel.tsv")[-1].kept == 4

    probed = list(read_jsonl(contained.data / "probe/log.jsonl"))
    assert len(probed) == 16
    assert {row["outcome"] for row in probed} <= {"solved", "unsolved", "agent_limit", "format_error"}
    predicted = list(read_jsonl(contained.folder / predictions / "sample_0/rollouts.jsonl"))
    assert len(predicted) == 2
    assert {row["image_digest"] for row in (*probed, *predicted)} == ids
    assert all(row["turns"] and row["outcome"] not in ("infra", "grader_error") for row in predicted)
    patches = list(read_jsonl(contained.folder / predictions / "sample_0/preds.jsonl"))
    assert {row["instance_id"] for row in patches} == {row["instance_id"] for row in predicted}
    gold, counts = (read_json(contained.folder / path) for path in reversed(graded))
    assert (gold["instances"], gold["resolved"], gold["executor"]) == (2, 2, "Docker")
    assert gold["suspicious"] == {}, "what the gold patches do is no hit"
    assert sum(counts["counts"].values()) == 2 and not counts["disagreements"]
    verdicts = list(read_jsonl(contained.folder / predictions / "verdicts.jsonl"))
    assert counts["suspicious"] == sum(bool(row["hits"]) for row in verdicts)
    assert not contained.processes()


def test_a_policy_is_trained_on_rollouts_in_containers(contained: Workflow) -> None:
    """One step over a group of four rollouts, and one of validation, each in a container of its task's image."""
    manifest = contained.results.relative_to(contained.folder) / "train/dense/step_1.json"
    run = contained.run(str(manifest))
    assert run.returncode == 0, run.stderr[-3000:]
    step = read_json(contained.folder / manifest)["metrics"]["last_step"]
    assert (step["rollouts"], step["trained_rollouts"], step["masked_rollouts"]) == (4, 4, 0)
    assert set(step["outcomes"]) <= {"solved", "unsolved", "agent_limit", "format_error"}
    trajectories = contained.work.glob("train/dense/*/trajectories/*/*")
    rolled = [read_json(path)["info"]["rollout"]["record"] for path in trajectories]
    made = [read_json(path) for path in (contained.work / "docker_images").glob("*.json")]
    assert len(rolled) == 4 + 1 and {row["image_digest"] for row in rolled} < {
        each["image"]["id"] for each in made
    }
    assert not contained.processes()
