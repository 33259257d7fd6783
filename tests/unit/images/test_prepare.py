"""What preparation decides without a daemon: which images are needed, what they take, how several go side by side."""

from __future__ import annotations

import ast
import os
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lightning_smith.core.entry_points import IN_IMAGES
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json
from lightning_smith.core.git import git
from lightning_smith.images import probe_inside
from lightning_smith.images.daemon import DockerError
from lightning_smith.images.known import KnownImage
from lightning_smith.images.layer import harness_files
from lightning_smith.images.preflight import Plan, plan_pulls, read_planned, write_plan
from lightning_smith.images.prepare import known_rows, prepare_all, read_manifest
from lightning_smith.images.proof import refuse_changes
from lightning_smith.images.registry import RemoteImage
from lightning_smith.images.state import ImageStates, failures_text
from lightning_smith.release.image_lists import names_text, needed, read_names

A, B = "swebench/swesmith.x86_64.a_1776_b.c", "swebench/sweb.eval.x86_64.d_1776_e-1:latest"
DIGEST = "sha256:" + "a" * 64


def rows(path: Path, *names: str | None) -> Path:
    path.write_text(
        "".join(f'{{"instance_id": "i{n}", "image_name": "{name or ""}"}}\n' for n, name in enumerate(names))
    )
    return path


def test_needed_images_are_the_ones_that_data_sets_name(tmp_path: Path) -> None:
    tasks = rows(tmp_path / "t.jsonl", A, A, "acme/x")
    verified = tmp_path / "v.parquet"
    pq.write_table(pa.table({"image": [B, B]}), verified)
    found = needed([tasks, verified])
    assert found == {"sweb.eval.x86_64.d_1776_e-1": B, "swesmith.x86_64.a_1776_b.c": A, "x": "acme/x"}
    assert needed([tasks], ["swesmith.x86_64.a__b.c"]) == {"swesmith.x86_64.a_1776_b.c": A}
    assert needed([tasks], limit=2) == {"swesmith.x86_64.a_1776_b.c": A}
    with pytest.raises(UserError, match=r"images.only names acme/y, which is the image of no task"):
        needed([tasks], ["acme/y"])
    (tmp_path / "names.tsv").write_text(names_text(found))
    assert read_names(tmp_path / "names.tsv") == found


def test_names_that_are_none_and_data_sets_that_are_damaged(tmp_path: Path) -> None:
    for name in ("Acme/X", "acme/x y"):
        with pytest.raises(UserError, match=rf"t\.jsonl: image '{name}' has a malformed repository"):
            needed([rows(tmp_path / "t.jsonl", "acme/x", name)])
    with pytest.raises(UserError, match=r"t\.jsonl: the images acme/x and other/x share the key x"):
        needed([rows(tmp_path / "t.jsonl", "acme/x", "other/x")])
    pq.write_table(pa.table({"image": [1]}), tmp_path / "numbers.parquet")
    with pytest.raises(UserError, match=r"numbers\.parquet row 1 has no image"):
        needed([tmp_path / "numbers.parquet"])
    names = [f"acme/image{n:05d}" for n in range(5000)]
    pq.write_table(pa.table({"image": names}), tmp_path / "damaged.parquet", use_dictionary=False)
    raw = bytearray((tmp_path / "damaged.parquet").read_bytes())
    raw[4:2000] = b"\xff" * 1996
    (tmp_path / "damaged.parquet").write_bytes(raw)
    (tmp_path / "folder.parquet").mkdir()
    for name in ("damaged", "folder"):
        with pytest.raises(UserError, match=rf"{name}\.parquet is no parquet file, or a damaged one \("):
            needed([tmp_path / f"{name}.parquet"])


def test_what_is_no_manifest(tmp_path: Path) -> None:
    for text in (
        "{}",
        "[]",
        '{"image_name": 1, "base": {}, "layer": {}, "image": {}}',
        '{"image_name": "x"}',
    ):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(UserError, match=r"x\.json is no manifest of an image: delete it"):
            read_manifest(tmp_path / "x.json")


def test_data_sets_that_name_no_image(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t.jsonl row 2 \(i1\) has no image_name"):
        needed([rows(tmp_path / "t.jsonl", A, None)])
    with pytest.raises(UserError, match="has no rows"):
        needed([rows(tmp_path / "t.jsonl")])
    with pytest.raises(UserError, match="does not exist"):
        needed([tmp_path / "none.parquet"])
    (tmp_path / "bad.parquet").write_text("x")
    with pytest.raises(UserError, match="is no parquet file"):
        needed([tmp_path / "bad.parquet"])
    pq.write_table(pa.table({"repo": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(UserError, match="has no column image_name or image"):
        needed([tmp_path / "other.parquet"])


class Described:
    """A registry's answers by image name; None: the daemon has it."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def describe(self, name: str) -> RemoteImage | None:
        if isinstance(answer := self._answers[name], UserError):
            raise answer
        return answer


def test_the_plan_counts_shared_layers_once(tmp_path: Path) -> None:
    base = ("sha256:base", 1000)
    one = RemoteImage("o/one", "o/one", DIGEST, DIGEST, (base, ("sha256:1", 200)))
    two = RemoteImage("o/two", "o/two", DIGEST, DIGEST, (base, ("sha256:2", 300)))
    answers = {"o/one": one, "o/two": two, "o/here": None, "o/gone": UserError("there is no o/gone")}
    plan = plan_pulls(Described(answers), list(answers), {"two": KnownImage(DIGEST, 1300, 5000)}, parallel=2)  # pyright: ignore
    assert plan.missing == {"one": one, "two": two} and plan.unavailable == {"o/gone": "there is no o/gone"}
    assert plan.compressed_bytes == 1500  # of 2500 listed
    assert plan.unpacked_bytes == int((3 * 1200 + 5000) * 1500 / 2500)
    assert plan.sentence().startswith(
        "4 images, 1 at the daemon, 2 to pull (0.0 GB, about 0.0 GB unpacked), 1 not"
    )
    write_plan(tmp_path / "plan.json", plan, {"version": "20.10"})
    assert read_planned(tmp_path / "plan.json") == {"one": one, "two": two}


def test_one_failure_stops_nothing_and_a_dead_daemon_stops_all() -> None:
    def prepare(name: str) -> dict[str, Any]:
        if name in ("bad", "dead"):
            raise (UserError("no git") if name == "bad" else DockerError("it went away"))
        return {"image_name": name}

    names = ["one", "bad", "two"]
    outcome = prepare_all(names, prepare, parallel=2, stop=threading.Event())
    assert set(outcome.manifests) == {"one", "two"} and outcome.failures == {"bad": "no git"}

    def alive() -> None:
        raise DockerError("no daemon answers")

    names = ["one", "dead", *(f"later{n}" for n in range(20))]
    stop = threading.Event()
    outcome = prepare_all(names, prepare, parallel=1, stop=stop, alive=alive)
    assert stop.is_set() and outcome.failures["dead"] == "it went away"
    assert set(outcome.manifests) | set(outcome.failures) == set(names)
    with pytest.raises(ZeroDivisionError):  # a defect is no failure of an image
        prepare_all(["x"], lambda name: 1 / 0, parallel=1, stop=threading.Event())  # pyright: ignore


def environment(files: int = 2, **packages: str) -> dict[str, Any]:
    return {"/opt/x": {"files": files, "packages": packages, "entries": dict(packages)}}


def test_changes_are_named() -> None:
    refuse_changes(environment(h11="1"), environment(h11="1"), "x")
    with pytest.raises(UserError, match=r"published with: h11 0\.14 → 0\.16, openai absent → 3; remove"):
        refuse_changes(environment(h11="0.14"), environment(h11="0.16", openai="3"), "x")
    with pytest.raises(UserError, match="/opt/x is gone"):
        refuse_changes(environment(h11="1"), {}, "x")
    many = {f"p{n:02}": "1" for n in range(20)}
    with pytest.raises(UserError, match=r"p07 1 → absent and 12 more; remove"):
        refuse_changes(environment(**many), environment(), "x")


def test_the_harness_needs_nothing_that_the_layer_has_not() -> None:
    """What goes into images has the pod's kind of workspace, and imports what envs/agent locks and nothing else."""
    files = harness_files()
    assert {f"{module.replace('.', '/')}.py" for module in IN_IMAGES} <= set(files)
    names = ("sandbox/pod", "sandbox/container", "agent/loop", "agent/chat")
    assert {f"lightning_smith/{name}.py" for name in names} <= set(files)
    assert not any(
        name.startswith(("lightning_smith/training", "lightning_smith/miniature")) for name in files
    )
    lock = tomllib.loads((Path(__file__).parents[3] / "envs/agent/uv.lock").read_text())
    locked = {package["name"].replace("-", "_") for package in lock["package"]}
    for name, source in files.items():
        statements = ast.parse(source).body
        modules = [alias.name for node in statements if isinstance(node, ast.Import) for alias in node.names]
        modules += [node.module or "" for node in statements if isinstance(node, ast.ImportFrom)]
        wanted = {module.split(".")[0] for module in modules} - sys.stdlib_module_names - {"lightning_smith"}
        assert wanted <= locked, name


def test_states_change_with_the_daemon_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged = {"a:openai": "sha256:1"}
    monkeypatch.setattr("lightning_smith.images.state._tagged", lambda: tagged)

    def state() -> str:
        states = ImageStates(tmp_path / "states", tmp_path)
        before = Path(states.file("a")).read_text() if (tmp_path / "states/a.txt").exists() else None
        states.compare(["a"])
        now = Path(states.file("a")).read_text()
        assert before in (None, now) or "no longer" in now
        return now

    assert state() == "as prepared\n"
    write_json(tmp_path / "a.json", {"image": {"id": "sha256:1", "tags": ["a:openai"]}})
    assert state() == "as prepared\n"
    tagged["a:openai"] = "sha256:2"
    altered = state()
    assert altered.endswith("a:openai: no longer as prepared\n") and state() == altered
    write_json(tmp_path / "a.json", {"image": {"id": "sha256:2", "tags": ["a:openai"]}})
    assert state() == altered
    write_json(tmp_path / "a.json", {})
    assert state().endswith("a.json: no longer as prepared\n")


def test_without_a_daemon_states_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    states = ImageStates(tmp_path, tmp_path)
    path = Path(states.file("a"))
    write_json(tmp_path / "a.json", {"image": {"id": "sha256:1", "tags": ["a:openai"]}})
    states.compare(["a"])
    assert Path(states.file("a")).read_text() == "as prepared\n" and path == tmp_path / "a.txt"


def test_a_manifest_that_was_brought_over_is_newer_than_its_state(tmp_path: Path) -> None:
    """Else Snakemake would prepare each image again on the machine that the manifests were brought to."""
    write_json(tmp_path / "a.json", {"image": {"id": "sha256:1", "tags": ["a:openai"]}})
    state = Path(ImageStates(tmp_path / "states", tmp_path).file("a"))
    assert state.stat().st_mtime < (tmp_path / "a.json").stat().st_mtime


def test_failures_are_told_at_the_end(tmp_path: Path) -> None:
    assert failures_text(tmp_path) == ""
    (tmp_path / "a.txt").write_text("there is no a\n")
    assert failures_text(tmp_path).startswith(
        "1 images could not be prepared:\n  a: there is no a\nrun the same"
    )


def test_rows_for_the_table_are_of_pulled_images() -> None:
    base = {"digest": DIGEST, "compressed_bytes": 10, "bytes": 30}
    manifests = [
        {"image_name": A, "base": base},
        {"image_name": "x", "base": {**base, "compressed_bytes": 0}},
    ]
    assert known_rows(manifests) == f"swesmith.x86_64.a_1776_b.c\t{DIGEST}\t10\t30\n"


def test_a_plan_that_is_whole() -> None:
    assert (
        Plan(2, {}, {}, 0, 0).sentence()
        == "2 images, 2 at the daemon, 0 to pull (0.0 GB, about 0.0 GB unpacked)"
    )


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_tree_of_another_user_than_the_images_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders and tracked files; what a build left is nobody's business."""
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    for name in ("a", "d/b", "built"):
        (tree / name).write_text("x\n")
    git(None, "init", "--quiet", "--template=", str(tree))
    (tree / ".git/info").mkdir(exist_ok=True)
    (tree / ".git/info/exclude").write_text("built\n")
    git(tree / ".git", "add", "a", "d/b", work_tree=tree)
    who = {
        f"GIT_{part}": "x" for part in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    }
    git(tree / ".git", "commit", "--quiet", "-m", "x", work_tree=tree, environment=who)
    monkeypatch.setattr(probe_inside, "TREE", str(tree))
    os.chown(tree / "built", 1000, 1000)
    assert probe_inside.problems(["true"], "") == probe_inside.problems(["true"], "0:0") == []
    (other,) = probe_inside.problems(["true"], "1000")
    assert other == f"has {tree}, which belongs to user 0 and not to its own (1000)"
    os.chown(tree / "d/b", 1000, 1000)
    (other,) = probe_inside.problems(["true"], "")
    assert other == f"has {tree}/d/b, which belongs to user 1000 and not to its own (root)"
