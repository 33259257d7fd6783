"""Containers of a real daemon: what they refuse, what they survive, and what their commands cannot do."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import docker_image
import plain_pod
import pytest
import tiny_image
import yaml
from docker_daemon import Proxy, own_daemon
from whole_settings import agent_settings

from lightning_smith.agent.chat import ScriptedModel
from lightning_smith.agent.loop import SUBMIT_COMMAND
from lightning_smith.agent.rollout import Request, Stage, run_rollout
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.contracts.validation import Patch
from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.executor import SandboxExecutor
from lightning_smith.grading.plan import ImageTests
from lightning_smith.grading.store import GradeStore
from lightning_smith.grading.validate import BuggyTask, TaskRooms, validate_once
from lightning_smith.images.daemon import LABEL, Daemon, connect
from lightning_smith.miniature.docker_images import Builder
from lightning_smith.sandbox import container as container_module
from lightning_smith.sandbox.bwrap import SandboxError
from lightning_smith.sandbox.container import ContainerRoom, ContainerWorkspace
from lightning_smith.sandbox.docker import DockerSandbox
from lightning_smith.sandbox.rooms import open_room

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]


@pytest.fixture(scope="module")
def sandbox(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> DockerSandbox:
    return DockerSandbox.find(daemon, tmp_path_factory.mktemp("copies"))


def open_workspace(sandbox: DockerSandbox, name: str, scratch: Path) -> ContainerWorkspace:
    return ContainerWorkspace(sandbox, sandbox.prepare(name), tiny_image.TASK, scratch)


def ours(daemon: Daemon) -> set[str]:
    found = daemon.api.containers(all=True, filters={"label": LABEL})
    return {
        container["Id"]
        for container in found
        if f"/{os.getpid()}/" in container["Labels"][LABEL] and plain_pod.LABEL not in container["Labels"]
    }


def nothing_but(daemon: Daemon, before: set[str]) -> bool:
    """Whether, within seconds, no more containers of this process are left: the daemon removes them in its own time."""
    deadline_s = time.monotonic() + 20
    while not ours(daemon) <= before and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return ours(daemon) <= before


EDIT_WHAT_IS_MAPPED = """
import glob, sys
paths = glob.glob("/usr/lib/**/*.so*", recursive=True) + glob.glob("/opt/miniconda3/**/*.so*", recursive=True)
paths += glob.glob("/opt/miniconda3/**/*.py", recursive=True)
for path in paths:
    with open(path, "r+b") as file:
        file.write(b"\\0" * 64)
"""


def test_edited_libraries_do_not_reach_the_executor(
    sandbox: DockerSandbox, docker_image_name: str, tmp_path: Path
) -> None:
    """Every library and module of the image is overwritten in place; the executor goes on with what it has."""
    with open_workspace(sandbox, docker_image_name, tmp_path / "ws") as workspace:
        workspace.execute("echo edited >> README; touch tests/new", 60)
        workspace.execute(f"python - <<'EOF'\n{EDIT_WHAT_IS_MAPPED}\nEOF", 60)
        broken = workspace.execute("echo alive", 60)
        assert broken.returncode not in (0, -1), broken.output  # bash itself cannot be loaded any more
        assert b"+edited" in workspace.diff() and b"b/tests/new" in workspace.diff()


def test_rollouts_at_once_have_containers_of_their_own(
    daemon: Daemon, sandbox: DockerSandbox, docker_image_name: str, tmp_path: Path
) -> None:
    before = ours(daemon)

    def roll(number: int) -> bytes:
        with open_workspace(sandbox, docker_image_name, tmp_path / str(number)) as workspace:
            workspace.execute(f"echo {number} > number", 60)
            return workspace.execute("cat number; ls /tmp", 60).output

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(roll, range(8))) == [b"%d\n" % number for number in range(8)]
    assert nothing_but(daemon, before)


def _child(sandbox: DockerSandbox, name: str, scratch: Path, number: int) -> None:
    with open_workspace(sandbox, name, scratch) as workspace:
        assert workspace.execute(f"echo {number}", 60).output == b"%d\n" % number


def test_forked_processes_have_connections_of_their_own(
    sandbox: DockerSandbox, docker_image_name: str, tmp_path: Path
) -> None:
    sandbox.prepare(docker_image_name)
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_child, args=(sandbox, docker_image_name, tmp_path / str(number), number))
        for number in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]


@pytest.mark.parametrize("user", ["agent", "1000", "1000:1000"])
def test_commands_run_as_the_image_says(
    daemon: Daemon, sandbox: DockerSandbox, tmp_path: Path, user: str
) -> None:
    tree = docker_image.base_tree(accounts="agent:x:1000:1000::/home/agent:/bin/bash\n")
    clone = docker_image.clone(tiny_image.build(tmp_path / "images") / "repository.git", tmp_path / "clone")
    tree.add(clone, "testbed", owner=1000)
    name = docker_image.import_image(daemon, tree, f"acme/widget_of_{user.replace(':', '_')}", f"USER {user}")
    with open_workspace(sandbox, name, tmp_path / "ws") as workspace:
        assert workspace.execute("id -u; id -g; echo $HOME", 60).output == b"1000\n1000\n/home/agent\n"
        assert workspace.execute("touch /usr/x", 60).returncode != 0
        assert workspace.execute(f"touch new && {tiny_image.FIX}", 60).returncode == 0
        assert workspace.execute("stat -c %u src/widget/core.py new", 60).output == b"1000\n1000\n"
        assert b"b/new" in workspace.diff() and b"b/src/widget/core.py" in workspace.diff()
        assert workspace.execute("kill -9 1 || cat /proc/1/environ", 60).returncode != 0
        timed = workspace.execute("(setsid sleep 3020 &); sleep 3021", 0.5)
        assert timed.timed_out and workspace.execute("ps -e | grep -c sleep", 60).output == b"0\n"


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ("", "has no /bin/sh"),
        ("sh", "it has no Python"),
        ("sh python", "has no bash"),
        ("sh python bash env", "has no git"),
    ],
    ids=["no shell", "no Python", "no bash", "no git"],
)
def test_an_image_that_lacks_what_is_needed(
    daemon: Daemon, sandbox: DockerSandbox, tmp_path: Path, programs: str, message: str
) -> None:
    tree = docker_image.base_tree(programs.split())
    clone = docker_image.clone(tiny_image.build(tmp_path / "images") / "repository.git", tmp_path / "clone")
    tree.add(clone, "testbed")
    name = docker_image.import_image(daemon, tree, f"acme/lacking{len(programs)}")
    before = ours(daemon)
    with pytest.raises(UserError, match=message):
        sandbox.prepare(name)
    assert nothing_but(daemon, before)


def test_a_branch_that_is_gone(sandbox: DockerSandbox, docker_image_name: str, tmp_path: Path) -> None:
    image = sandbox.prepare(docker_image_name)
    with pytest.raises(UserError, match="has no branch or commit pypi__gone"):
        ContainerWorkspace(sandbox, image, "pypi__gone", tmp_path / "ws")


def test_files_that_a_build_left_are_not_in_the_patch(
    daemon: Daemon, sandbox: DockerSandbox, tmp_path: Path
) -> None:
    """They are in the grader's tree as well, where a patch that makes them anew would not apply."""
    clone = docker_image.clone(tiny_image.build(tmp_path / "images") / "repository.git", tmp_path / "clone")
    (clone / "src/widget.egg-info").mkdir()
    (clone / "src/widget.egg-info/PKG-INFO").write_text("Name: widget\n")
    (clone / "built.so").write_text("binary")
    tree = docker_image.base_tree()
    tree.add(clone, "testbed")
    name = docker_image.import_image(daemon, tree, "acme/built")
    with open_workspace(sandbox, name, tmp_path / "ws") as workspace:
        workspace.execute("echo x >> src/widget.egg-info/PKG-INFO; rm built.so; echo x >> README", 60)
        diff = workspace.diff()
        assert diff.count(b"diff --git ") == 1 and b"README" in diff
        assert workspace.left_out == {"not in git": 2}


CONVERTED = {
    ".gitattributes": "*.bat text eol=crlf\n*.c ident\nwide.txt text working-tree-encoding=UTF-16LE-BOM\n",
    "run.bat": "echo one\necho two\n",
    "id.c": "/* $Id$ */\nint x;\n",
    "wide.txt": "één\ntwee\n",
    "dirty.cfg": "a = 1\nb = 2\nc = 3\n",
    "gone.cfg": "x\n",
}
EDIT_CONVERTED = (
    "sed -i s/two/three/ run.bat && sed -i 's/int x/int y/' id.c && printf 'x\\0\\n\\0' >> wide.txt && "
    "sed -i 's/a = 1/a = 5/' dirty.cfg && echo new > gone.cfg"
)
STATE = "sha256sum run.bat id.c wide.txt dirty.cfg gone.cfg src/widget/core.py"


def test_the_patch_is_of_the_tree_that_was_found_and_applies_to_it(
    daemon: Daemon, sandbox: DockerSandbox, tmp_path: Path
) -> None:
    """Git has converted files when the image was made, others were changed afterwards without a commit."""
    built = tiny_image.build(tmp_path / "images", {**tiny_image.FILES, **CONVERTED})
    clone = docker_image.clone(built / "repository.git", tmp_path / "clone")
    assert (clone / "run.bat").read_bytes() == b"echo one\r\necho two\r\n" and b"$Id: " in (
        clone / "id.c"
    ).read_bytes()
    (clone / "dirty.cfg").write_text("a = 1\nb = 9\nc = 3\n")
    (clone / "gone.cfg").unlink()
    tree = docker_image.base_tree()
    tree.add(clone, "testbed")
    name = docker_image.import_image(daemon, tree, "acme/converted")
    image = sandbox.prepare(name)
    found = sandbox.facts(image).found
    assert {path for path, entry in found.items() if entry} == {"run.bat", "id.c", "wide.txt", "dirty.cfg"}
    assert found["gone.cfg"] is None and len(found) == 5
    with open_workspace(sandbox, name, tmp_path / "ws") as workspace:
        assert workspace.execute(f"{EDIT_CONVERTED} && {tiny_image.FIX}", 60).returncode == 0
        diff, state = workspace.diff(), workspace.execute(STATE, 60).output
    assert b"-echo two\r\n+echo three\r\n" in diff and b" echo one\r\n" in diff
    assert b" b = 9\n" in diff and b"new file mode 100644" in diff
    with sandbox.test_tree(image, tiny_image.TASK) as graded:
        applied = graded.apply(diff, lambda path: False)
        assert applied.ok, applied.output
        done = graded.run(STATE, environment={}, timeout_s=60, cpu_s=60, keep_bytes=10_000)
    assert done.output == state and done.returncode == 0


@pytest.mark.parametrize(("owner", "user"), [(1000, ""), (0, "1000")])
def test_a_tree_of_another_user_is_refused_before_the_first_rollout(
    daemon: Daemon, docker_image_name: str, tmp_path: Path, owner: int, user: str
) -> None:
    """Even root may not change others' files, without capabilities."""
    tree = docker_image.Tree()
    clone = docker_image.clone(tiny_image.build(tmp_path / "images") / "repository.git", tmp_path / "clone")
    tree.add(clone, "testbed", owner=owner)
    name = docker_image.derive(daemon, docker_image_name, f"acme/of_{owner}", tree, f"USER {user or 'root'}")
    settings = StageSettings(
        tasks=tiny_image.write_tasks(tmp_path / "tasks.jsonl", tiny_image.row(image_name=name)),
        images=tmp_path / "copies",
        model="policy",
        agent=agent_settings(system_template="system"),
        workspace="docker",
    )
    with pytest.raises(UserError) as caught:
        Stage(settings)
    other = user or "0"
    assert str(caught.value) == (
        f"/testbed in the image {name} belongs to user {owner}, and commands run as {other}, who may not change it: "
        f"build the image again with `RUN chown -R {other} /testbed` before its USER line, or with `USER {owner}`"
    )


# ------------------------------------------------------------------------------------------------- the machine's faults


def test_a_container_that_is_killed_is_the_machines_fault(
    daemon: Daemon, sandbox: DockerSandbox, docker_image_name: str, tmp_path: Path
) -> None:
    before = ours(daemon)
    with open_workspace(sandbox, docker_image_name, tmp_path / "ws") as workspace:
        (container,) = ours(daemon) - before
        daemon.api.kill(container)
        with pytest.raises(SandboxError, match=r"ended by itself|went away"):
            workspace.execute("echo x", 60)
        with pytest.raises(SandboxError, match="the container is closed"):
            workspace.execute("echo x", 60)
        with pytest.raises(SandboxError):
            workspace.diff()


def test_a_daemon_that_falls_silent_is_the_machines_fault(
    daemon: Daemon,
    docker_image_name: str,
    sandbox: DockerSandbox,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither a time-out of the command nor an empty output, and nothing is left once the daemon is heard again."""
    monkeypatch.setattr(container_module, "ANSWER_S", 1.0)
    before = ours(daemon)
    proxy = Proxy(tmp_path / "s")
    monkeypatch.setenv("DOCKER_HOST", proxy.host)
    with (
        connect(timeout_s=2) as slow,
        open_workspace(
            DockerSandbox.find(slow, sandbox.images.folder), docker_image_name, tmp_path / "ws"
        ) as workspace,
    ):
        assert workspace.execute("echo x", 5).output == b"x\n"
        proxy.fall_silent()
        started_s = time.monotonic()
        with pytest.raises(SandboxError, match="did not answer"):
            workspace.execute("sleep 1", 2)
        assert time.monotonic() - started_s < 20
    proxy.close()
    assert nothing_but(daemon, before)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_storage_without_layers_is_refused(tmp_path: Path) -> None:
    with (
        own_daemon("asked for", "--storage-driver", "vfs") as own,
        pytest.raises(UserError, match=r"stores images with vfs.*--storage-driver overlay2"),
    ):
        DockerSandbox.find(own, tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_a_daemon_with_fewer_processors_than_a_container_gets(tmp_path: Path) -> None:
    with own_daemon("asked for", before=("taskset", "-c", "0")) as own:
        assert own.api.info()["NCPU"] == 1
        name = docker_image.build(own, tmp_path / "build")
        with open_workspace(DockerSandbox.find(own, tmp_path / "copies"), name, tmp_path / "ws") as workspace:
            assert workspace.execute("echo alive", 60).output == b"alive\n"


def test_proxies_of_the_users_configuration_stay_out_of_images_and_containers(
    docker_image_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docker-py copies them, with their passwords, into what it creates and builds unless it is told not to."""
    proxy = "http://user:s3cret@proxy.invalid:3128"
    proxies = {"default": {"httpProxy": proxy, "httpsProxy": proxy, "noProxy": "s3cret.invalid"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with connect() as daemon:
        direct = daemon.api.create_container(docker_image_name, ["none"])["Id"]
        own = daemon.create(image=docker_image_name)
        environments = [str(daemon.api.inspect_container(id)["Config"]["Env"]) for id in (direct, own)]
        for container in (direct, own):
            daemon.remove(container)
        assert ["s3cret" in text for text in environments] == [True, False]
        sandbox = DockerSandbox.find(daemon, tmp_path / "copies")
        before = ours(daemon)
        with open_workspace(sandbox, docker_image_name, tmp_path / "ws") as workspace:
            (container,) = ours(daemon) - before
            assert "s3cret" not in str(daemon.api.inspect_container(container)["Config"])
            assert b"s3cret" not in workspace.execute("env", 60).output
        (tmp_path / "context").mkdir()
        builder = Builder(daemon, daemon.image(docker_image_name), tmp_path, tmp_path)
        lines = [f"FROM {docker_image_name}", "RUN env > /seen"]
        image = builder._docker_build(tmp_path / "context", lines, "acme/proxied", {}, "build")
        docker_image.imported.add(image)
        container = daemon.create(image=image)
        stream, _ = daemon.api.get_archive(container, "/seen")
        seen = b"".join(stream)
        daemon.remove(container)
        assert b"PATH=" in seen and b"s3cret" not in seen


# ------------------------------------------------------------------------------------------------------ whole rollouts


def test_whole_rollouts(daemon: Daemon, docker_image_name: str, tmp_path: Path) -> None:
    """The same agent, grader and record as in bubblewrap, by one setting of the stage."""
    before = ours(daemon)
    agent = AgentSettings.from_dict(
        yaml.safe_load((tiny_image.REPOSITORY / "config.yaml").read_text())["agent"]
    )
    settings = StageSettings(
        tasks=tiny_image.write_tasks(tmp_path / "tasks.jsonl", tiny_image.row()),
        images=tmp_path / "copies",
        model="policy",
        agent=agent,
        workspace="docker",
    )
    settings.write(tmp_path / "stage.json")
    stage = Stage(StageSettings.read(tmp_path / "stage.json"))

    def outcome(*commands: str) -> Outcome | None:
        replies = [f"```bash\n{command}\n```" for command in (*commands, SUBMIT_COMMAND)]
        record = run_rollout(stage, Request(tiny_image.TASK, 0, 7, True), ScriptedModel(replies)).record
        assert record.image_digest == daemon.image(docker_image_name).id and record.error is None
        return record.outcome

    assert outcome("cat src/widget/core.py", tiny_image.FIX) is Outcome.SOLVED
    assert outcome("echo more >> README") is Outcome.UNSOLVED
    assert nothing_but(daemon, before)

    # An image of the evaluation set is of one instance: what it has checked out is the start.
    name, instance = "swebench/sweb.eval.x86_64.acme_1776_widget-1", "acme__widget-1"
    docker_image.derive(daemon, docker_image_name, name)
    row = tiny_image.row(instance_id=instance, image_name=name)
    stage = Stage(replace(settings, tasks=tiny_image.write_tasks(tmp_path / "evaluated.jsonl", row)))
    replies = [f"```bash\n{command}\n```" for command in ("echo more >> README", SUBMIT_COMMAND)]
    rollout = run_rollout(stage, Request(instance, 0, 7, False), ScriptedModel(replies))
    assert (rollout.record.outcome, rollout.patch.count(b"+more")) == (None, 1)
    with pytest.raises(UserError, match=r"the workspace 'vm' is unknown: it is bwrap, docker or pod"):
        open_room("vm", settings.images)


def test_a_repository_above_the_tree_has_no_say(
    daemon: Daemon, sandbox: DockerSandbox, docker_image_name: str, tmp_path: Path
) -> None:
    """There git skips every file of a patch, and ends with success."""
    outer = docker_image.Tree()
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "outer")], check=True)
    outer.add(tmp_path / "outer/.git", ".git")
    name = docker_image.derive(daemon, docker_image_name, "acme/in-a-repository", outer)
    room = ContainerRoom(sandbox)
    rooms = TaskRooms(room, ImageTests(), timeout_s=120, scratch=tmp_path / "scratch")
    task = RolloutTask.from_row(tiny_image.row(image_name=name))
    with rooms.workspace(task) as workspace:
        above = workspace.execute("git rev-parse --show-toplevel", 60)
        assert above.output == b"/\n" and workspace.execute(tiny_image.FIX, 60).returncode == 0
        fix = workspace.diff()
    gold = validate_once(BuggyTask(task, tiny_image.BUG.encode()), Patch.GOLD, 0, rooms)
    assert (gold.outcome, gold.error) == (Outcome.SOLVED, None)
    row = {"image": name, "base_commit": f"{tiny_image.TASK}~1"}
    script = f"grep -cF '{tiny_image.FIXED_LINE}' /testbed/src/widget/core.py"
    official = SandboxExecutor(room, GradeStore(tmp_path / "grades"), 120)(row, script, fix)
    assert (official.applied, official.log) == (True, b"1\n")
