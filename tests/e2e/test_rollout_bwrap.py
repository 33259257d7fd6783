"""Rollouts and gradings in real sandboxes: what solves, what does not, and what must not work."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import tiny_image
from processes import processes

from lightning_smith.agent import loop as loop_module
from lightning_smith.agent import rollout as agent_module
from lightning_smith.agent.chat import ScriptedModel
from lightning_smith.agent.loop import SUBMIT_COMMAND
from lightning_smith.agent.rollout import Agent, Request, Rollout, Stage, open_stage, run_rollout
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.contracts.outcome import Ending, Outcome, RolloutRecord
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.core.git import git
from lightning_smith.grading import grader as grading_module
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.verdict import decide
from lightning_smith.repositories.local import LocalImage
from lightning_smith.sandbox.bwrap import (
    Bwrap,
    Completed,
    Limit,
    ResourceLimits,
    SandboxError,
    _kill_with_children,
)
from lightning_smith.sandbox.scratch import Scratch, sweep
from lightning_smith.sandbox.workspace import BwrapWorkspace, observation_text

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

AGENT: dict[str, Any] = {**tiny_image.AGENT, "grading_timeout_s": 120}
SECRET = "sk-not-for-the-policy"


def make_stage(folder: Path, *rows: dict[str, Any], **agent: Any) -> Stage:
    return Stage(
        StageSettings(
            tasks=tiny_image.write_tasks(folder / "tasks.jsonl", *(rows or (tiny_image.row(),))),
            images=folder / "images",
            model="policy",
            model_revision="r1",
            agent=AgentSettings.from_dict({**AGENT, **agent}),
            trajectories=folder / "trajectories",
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the image, whose path is long and holds a blank and an é."""
    folder = tmp_path_factory.mktemp("rollouts") / f"a clone, é {'x' * 110}"
    tiny_image.build(folder / "images")
    return folder


@pytest.fixture(scope="module")
def stage(folder: Path) -> Stage:
    return make_stage(folder)


@pytest.fixture(scope="module")
def image(stage: Stage) -> LocalImage:
    return stage.room.image(tiny_image.IMAGE_NAME)


@pytest.fixture(scope="module")
def task(stage: Stage) -> RolloutTask:
    return stage.tasks[tiny_image.TASK]


@pytest.fixture
def workspace(stage: Stage, image: LocalImage, tmp_path: Path) -> Iterator[BwrapWorkspace]:
    with BwrapWorkspace(
        stage.room.sandbox, image, tiny_image.TASK, tmp_path / "ws", keep_bytes=4000
    ) as workspace:
        yield workspace


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


def roll_out(
    stage: Stage, *commands: str, sample: int = 0, submit: bool = True, grade: bool = True
) -> Rollout:
    replies = [bash(command) for command in commands] + ([bash(SUBMIT_COMMAND)] if submit else [])
    return run_rollout(stage, Request(tiny_image.TASK, sample, 7, grade), ScriptedModel(replies))


# ------------------------------------------------------------------------------------------------ the workbench


def test_commands_see_the_task_and_no_secrets(
    workspace: BwrapWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_KEY", SECRET)
    monkeypatch.setenv("LS_REPORT_TOKEN", SECRET)
    monkeypatch.setenv("AGL_EVENT_URL", "http://127.0.0.1:1/events")
    seen = workspace.execute(
        "env; tr '\\0' '\\n' < /proc/1/environ; ls -a /proc/1/root/ / /testbed; id -u", 60
    )
    text = seen.output.decode()
    assert seen.returncode == 0 and SECRET not in text and "AGL" not in text
    assert ".git\n" not in text and "README" in text and "1000" in text
    assert workspace.execute("cat tests/test_core.py", 60).returncode == 1
    assert workspace.execute("cat /etc/shadow; ls /home /work /root/.ssh", 60).returncode != 0
    assert workspace.execute(f"ls {workspace.tree}", 60).returncode != 0


def test_only_the_tree_and_tmp_can_be_written(workspace: BwrapWorkspace) -> None:
    for place in ("/", "/usr", "/opt/testbed", "/dev", "/run", "/etc"):
        assert workspace.execute(f"touch {place}/x", 60).returncode != 0, place
    assert workspace.execute("echo kept > /tmp/note && echo x > new.txt", 60).returncode == 0
    assert workspace.execute("cat /tmp/note", 60).output == b"kept\n"
    assert b"new file mode 100644" in workspace.diff() and b"note" not in workspace.diff()


def test_processor_time_is_bounded_apart_from_the_clock(stage: Stage, tmp_path: Path) -> None:
    def run(command: str) -> Completed:
        return stage.room.sandbox.run(command, tree=tmp_path, environment={}, timeout_s=60, cpu_s=1)

    done = run("echo partial; while :; do :; done")
    assert (done.limit, done.returncode, done.output) == (Limit.TIME, None, b"partial\n")
    assert done.stopped == "took more than 1 s of processor time" and done.wall_s < 30
    assert run("sleep 2; echo slept").output == b"slept\n"
    assert run("trap '' XCPU; while :; do :; done").returncode == 137


IN_A_CHROOT = """
import os, subprocess, sys
from pathlib import Path
os.unshare(os.CLONE_NEWNS)
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "--rbind", "/", sys.argv[1]], check=True)
os.chroot(sys.argv[1])
os.chdir("/usr")
from lightning_smith.sandbox.bwrap import Bwrap
sandbox = Bwrap.find()
done = sandbox.run("id -u; ls -d /testbed", tree=Path("/usr/share/doc"), environment={}, timeout_s=60)
print(done.output.split(), os.getcwd())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_in_a_chroot_too(tmp_path: Path) -> None:
    """Where the kernel allows no user namespaces, so that bubblewrap alone fails."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CHROOT, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[b'1000', b'/testbed'] /usr\n", done.stderr
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_killed_harness_takes_its_commands_along(stage: Stage, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from lightning_smith.sandbox.bwrap import Bwrap, find_bwrap\n"
        "Bwrap(find_bwrap()).run('sleep 3016', tree=Path(sys.argv[1]), environment={}, timeout_s=100)\n"
    )
    harness = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    deadline_s = time.monotonic() + 60
    while len(processes("sleep 3016")) < 1 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    while processes("sleep 3016") and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert time.monotonic() < deadline_s


@pytest.mark.parametrize("command", ["yes", "cat /dev/urandom", "printf '\\377\\0'; yes $'\\303'"])
def test_endless_output_is_cut_and_harmless(workspace: BwrapWorkspace, command: str) -> None:
    started_s = time.monotonic()
    seen = workspace.execute(command, 2)
    assert seen.timed_out and time.monotonic() - started_s < 12
    assert len(seen.output) == 8000 and seen.dropped_bytes > 0
    text = observation_text(seen, 1000)
    assert len(text) < 1200 and text.encode() and "bytes left out" in text
    assert text.endswith("[stopped: it ran over its limit of 2 s]\n</output>")
    assert workspace.execute("echo well", 60).output == b"well\n"


def test_a_command_may_lock_itself_out(workspace: BwrapWorkspace) -> None:
    workspace.execute("chmod 000 /testbed /tmp", 60)
    assert workspace.execute("ls README", 60).output == b"README\n"
    deep = "import os\nfor _ in range(1200):\n    os.mkdir('d'); os.chdir('d')"
    assert workspace.execute(f'python -c "{deep}"; mkdir a && chmod 000 a', 60).returncode == 0
    assert workspace.diff() == b""
    workspace.close()
    assert not workspace.tree.exists()


def test_resource_limits(stage: Stage, tmp_path: Path) -> None:
    limits = ResourceLimits(processes=40, memory_mb=512, file_mb=1, tmp_mb=1)
    sandbox = Bwrap(stage.room.sandbox.program, stage.room.sandbox.testbed_python, limits)

    def run(command: str) -> tuple[int | None, Limit | None, bytes]:
        done = sandbox.run(command, tree=tmp_path, environment={}, timeout_s=60)
        return done.returncode, done.limit, done.output

    assert run("python -c 'bytearray(10**9)'")[0] == 1
    assert run("head -c 2000000 /dev/zero > f")[0] != 0 and (tmp_path / "f").stat().st_size == 2**20
    assert run("head -c 2000000 /dev/zero > /tmp/f || head -c 2000000 /dev/zero > /dev/shm/f")[0] != 0
    full = Bwrap(stage.room.sandbox.program, limits=ResourceLimits(min_free_mb=10**9))
    done = full.run("sleep 60", tree=tmp_path, environment={}, timeout_s=60)
    assert done.limit is Limit.DISK and not done.timed_out and "MB free" in (done.stopped or "")


FORKS = """
import os, time
for number in range(1000):
    try:
        pid = os.fork()
    except OSError:
        break
    time.sleep(0.005 if pid else 60)
print(number, flush=True)
"""


@pytest.mark.parametrize("group", [True, False], ids=["control group", "counted by the harness"])
def test_processes_are_limited(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: bool
) -> None:
    if not group:
        monkeypatch.setattr("lightning_smith.sandbox.cgroup._parent", lambda: None)
    sandbox = Bwrap(stage.room.sandbox.program, limits=ResourceLimits(processes=40))
    done = sandbox.run(f"python3 -c '{FORKS}'", tree=tmp_path, environment={}, timeout_s=60)
    assert done.limit is Limit.PROCESSES or int(done.output) < 40
    after = sandbox.run("ls", tree=tmp_path, environment={}, timeout_s=60)
    assert (after.returncode, after.limit) == (0, None)


def test_a_sandbox_that_cannot_start_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxError, match="No permissions to create new namespace"):
        Bwrap(broken).run("true", tree=tmp_path, environment={}, timeout_s=60)
    with pytest.raises(SandboxError, match="user namespaces"):
        Bwrap(broken).check()
    with pytest.raises(UserError, match=r"uv sync .* envs/testbed"):
        Bwrap.find(tmp_path / "python")


def test_scratch_folders_go_with_their_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_smith.sandbox.scratch.MEMORY", tmp_path)
    with Scratch() as scratch:
        assert scratch.parent == tmp_path and scratch.stat().st_mode & 0o777 == 0o700
        (tmp_path / f"lightning-smith-{os.getpid()}-1-older").mkdir()
        (tmp_path / "lightning-smith-notes").mkdir()
        sweep(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {scratch.name, "lightning-smith-notes"}
    assert not scratch.exists()
    monkeypatch.setattr("lightning_smith.sandbox.scratch.MEMORY_NEEDED_BYTES", 2**80)
    with Scratch(tmp_path / "on disk") as scratch:
        assert scratch.parent == tmp_path / "on disk"


# -------------------------------------------------------------------------------------------------- whole rollouts


def test_gold_edit_is_solved(stage: Stage, folder: Path) -> None:
    rollout = roll_out(stage, "cat src/widget/core.py", tiny_image.FIX)
    record = rollout.record
    assert (record.outcome, record.reward, record.resolved) == (Outcome.SOLVED, 1.0, True), record.error
    assert (record.turns, record.model, record.model_revision, record.seed) == (3, "policy", "r1", 7)
    assert record.image_digest.startswith("sha256:") and record.error is None
    assert record.patch_sha256 == hashlib.sha256(rollout.patch).hexdigest()
    path = folder / "trajectories" / tiny_image.TASK / "0.traj.json"
    assert record.trajectory_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    document = json.loads(path.read_text())
    assert document["info"]["submission"].encode() == rollout.patch
    assert "test_low" not in json.dumps(document["messages"])
    assert not list(Path("/dev/shm").glob(f"lightning-smith-{os.getpid()}-*"))


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "sed -i 's|value >= low|value == low|' src/widget/core.py",
        "echo 'not python (' >> src/widget/core.py",
        "rm -r src",
        "echo 'import nowhere' >> src/widget/__init__.py",
    ],
    ids=["no edit", "wrong edit", "syntax error", "no code left", "import error"],
)
def test_no_gold_edit_is_unsolved(stage: Stage, command: str) -> None:
    record = roll_out(stage, command).record
    assert (record.outcome, record.reward, record.resolved) == (Outcome.UNSOLVED, 0.0, False), record.error


def test_other_endings(stage: Stage, folder: Path) -> None:
    limit = roll_out(stage, *["true"] * 6, submit=False).record
    assert (limit.outcome, limit.reward, limit.turns) == (Outcome.AGENT_LIMIT, 0.0, 6)
    wrong = run_rollout(stage, Request(tiny_image.TASK, 0, 7, True), ScriptedModel(["ls"])).record
    assert (wrong.outcome, wrong.reward, wrong.turns) == (Outcome.FORMAT_ERROR, 0.0, 1)
    absent = run_rollout(stage, Request("nothing", 0, 7, True), ScriptedModel([])).record
    assert (absent.outcome, absent.reward) == (Outcome.INFRA, None) and "no task nothing" in (
        absent.error or ""
    )
    silent = run_rollout(stage, Request(tiny_image.TASK, 0, 7, True), ScriptedModel([])).record
    assert (silent.outcome, silent.reward) == (Outcome.INFRA, None)
    large = roll_out(stage, "head -c 30000000 /dev/urandom > blob")
    assert (large.record.outcome, large.record.reward) == (Outcome.UNSOLVED, 0.0)
    assert "'blob' (30,000,000 bytes)" in (large.record.error or "") and large.patch == b""


def test_a_task_without_its_image_stops_the_stage(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").symlink_to(folder / "images")
    with pytest.raises(UserError, match="there is no image at"):
        make_stage(tmp_path, tiny_image.row(image_name="swesmith/swesmith.x86_64.a_1776_b.1"))


def test_missing_test_files_are_no_verdict(stage: Stage, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").symlink_to(folder / "images")
    odd = make_stage(tmp_path, tiny_image.row(FAIL_TO_PASS=["tests/test_gone.py::test_x"]))
    record = roll_out(odd, tiny_image.FIX).record
    assert (record.outcome, record.reward) == (Outcome.GRADER_ERROR, None)
    assert "lacks tests/test_gone.py" in (record.error or "")


def test_statements_beyond_an_argument(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "images").symlink_to(folder / "images")
    statement = "Long log follows.\n" + "x" * 1023 * 140
    long = make_stage(tmp_path, tiny_image.row(problem_statement=statement))
    rollout = roll_out(long, tiny_image.FIX)
    assert rollout.messages[1]["content"] == statement and rollout.record.outcome is Outcome.SOLVED


def test_equal_patches_are_tested_once(stage: Stage, image: LocalImage, task: RolloutTask) -> None:
    patch = roll_out(stage, f"{tiny_image.FIX}; echo once > once.txt").patch
    run = run_tests(
        task, image, patch, stage.store, stage.room.sandbox, timeout_s=stage.settings.agent.grading_timeout_s
    )
    assert run.cached and decide(task, run) is Outcome.SOLVED


class Gateway:
    """A stand-in for the gateway: answers completions from a script, keeps events, can be paused."""

    def __init__(self, replies: list[str]) -> None:
        self.replies, self.events, self.paused = replies, [], 2
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = gateway.answer(self.path, body, self.headers["Authorization"])
                data = json.dumps(answer).encode()
                self.send_response(status)
                if status == 429:
                    self.send_header("Retry-After", "0")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, path: str, body: dict[str, Any], authorization: str) -> tuple[int, dict[str, Any]]:
        reports = path.endswith("/events")
        assert authorization == f"Bearer {SECRET.upper() if reports else SECRET}"
        if reports:
            self.events.append((body["event_type"], body["data"]))
            return 200, {}
        if self.paused:
            self.paused -= 1
            return 429, {}
        assert body["seed"] == 11 and body["model"] == "policy"
        return 200, {
            "choices": [{"message": {"content": self.replies.pop(0)}}],
            "usage": {"prompt_tokens": 3},
        }


@pytest.mark.parametrize("grade", ["1", "0"])
def test_agent_posts_its_events(stage: Stage, tmp_path: Path, grade: str) -> None:
    gateway = Gateway([bash(tiny_image.FIX), bash(SUBMIT_COMMAND)])
    stage.settings.write(tmp_path / "stage.json")
    environment = {
        "AGL_OPENAI_BASE_URL": f"{gateway.url}/proxy/v1",
        "AGL_EVENT_URL": f"{gateway.url}/api/events",
        "AGL_KEY": SECRET,
        "LS_REPORT_TOKEN": SECRET.upper(),
        "LS_STAGE_FILE": str(tmp_path / "stage.json"),
        "LS_INSTANCE_ID": tiny_image.TASK,
        "LS_SAMPLE": "2",
        "LS_SEED": "11",
        "LS_GRADE": grade,
    }
    Agent(environment).run()
    gateway.http.shutdown()
    kinds = [kind for kind, _ in gateway.events]
    record = gateway.events[0][1]
    assert record["prompt_tokens"] == 6 and record["sample"] == 2 and record["turns"] == 2
    if grade == "1":
        assert kinds == ["outcome", "reward"] and gateway.events[1][1] == {"value": 1.0}
        assert record["outcome"] == "solved" and "model_patch" not in record
    else:
        assert kinds == ["outcome"] and record["outcome"] is None and record["reward"] is None
        patch = base64.b64decode(record["model_patch"])
        assert patch.startswith(b"diff --git a/src/widget/core.py")
        assert hashlib.sha256(patch).hexdigest() == record["patch_sha256"]


def test_a_dead_sandbox_is_no_verdict(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(stage.room.sandbox, program=Path("/bin/false"))
    monkeypatch.setattr(stage.room, "sandbox", broken)
    record = roll_out(stage, "true").record
    assert (record.outcome, record.reward) == (Outcome.INFRA, None)
    assert "sandbox did not start" in (record.error or "")


def test_a_defect_is_no_verdict(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "run_episode", lambda *_, **__: 1 / 0)
    record = roll_out(stage, "true").record
    assert (record.outcome, record.reward) == (Outcome.INFRA, None)
    assert record.error == "ZeroDivisionError: division by zero"


def test_a_stage_says_how_many_gradings_run_at_a_time(stage: Stage, folder: Path) -> None:
    assert (stage.store._slots, make_stage(folder, gradings=3).store._slots) == (2, 3)


def test_a_stage_is_opened_once(stage: Stage, tmp_path: Path) -> None:
    stage.settings.write(tmp_path / "stage.json")
    assert open_stage(str(tmp_path / "stage.json")) is open_stage(str(tmp_path / "stage.json"))


def test_refused_commands_are_counted_and_not_run(stage: Stage) -> None:
    rollout = roll_out(stage, "touch made; git log", "git diff; ls", tiny_image.FIX, sample=6)
    record = rollout.record
    assert (record.outcome, record.reward, record.turns) == (Outcome.SOLVED, 1.0, 4)
    assert (record.blocked, record.opaque) == ({"git": 2}, 0) and b"made" not in rollout.patch
    assert stage.settings.trajectories is not None
    document = json.loads((stage.settings.trajectories / tiny_image.TASK / "6.traj.json").read_text())
    assert document["info"]["rollout"]["record"]["blocked"] == {"git": 2}
    kinds = [message["extra"].get("blocked") for message in document["messages"]]
    assert [kind for kind in kinds if kind] == [{"kind": "git", "program": "git"}] * 2


@pytest.mark.parametrize(
    ("command", "grade", "outcome", "reward"),
    [
        (tiny_image.FIX, True, Outcome.SOLVED, 1.0),
        ("echo '# look' >> src/widget/core.py", True, Outcome.AGENT_LIMIT, 0.0),
        ("ls", True, Outcome.AGENT_LIMIT, 0.0),
        (tiny_image.FIX, False, Outcome.AGENT_LIMIT, None),
    ],
)
def test_what_never_submitted_is_graded_where_that_counts(
    folder: Path, command: str, grade: bool, outcome: Outcome, reward: float | None
) -> None:
    stage = make_stage(folder, max_turns=1, grade_unsubmitted=True)
    rollout = roll_out(stage, command, sample=9, submit=False, grade=grade)
    record = rollout.record
    assert (record.outcome, record.reward, record.turns) == (outcome, reward, 1)
    assert record.error == "no submission within 1 turns"
    assert record.ending is Ending.LIMIT, "solved or not"
    path = folder / "trajectories" / tiny_image.TASK / "9.traj.json"
    assert json.loads(path.read_text())["info"]["exit_status"] == "LimitsExceeded"
    assert record.patch_sha256 == (hashlib.sha256(rollout.patch).hexdigest() if command != "ls" else None)
    strict = roll_out(make_stage(folder, max_turns=1), command, sample=9, submit=False, grade=grade)
    assert (strict.record.outcome, strict.patch) == (Outcome.AGENT_LIMIT, b"")


def test_an_error_of_the_harness_keeps_patch_turns_and_trajectory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the policy did until then is graded like what a limit ended; an error of the grader is no verdict."""
    stage = make_stage(folder, grade_unsubmitted=True)

    def failing(*_: object, **__: object) -> NoReturn:
        raise ValueError("cannot be read")

    def roll(place: object, name: str, *commands: str) -> tuple[Outcome | None, str | None]:
        with monkeypatch.context() as patch:
            patch.setattr(place, name, failing)
            rollout = roll_out(stage, tiny_image.FIX, *commands, sample=10)
        path = folder / "trajectories" / tiny_image.TASK / "10.traj.json"
        document = json.loads(path.read_text())
        assert document["info"]["rollout"]["record"]["outcome"] == rollout.record.outcome
        assert rollout.record.trajectory_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert rollout.record.turns == (1 if name == "observation_text" else 3)
        path.unlink()
        patches.append(document["info"]["submission"])
        return rollout.record.outcome, rollout.record.error

    patches: list[str] = []
    at_the_reply = "the harness failed at the last reply: ValueError: cannot be read"
    assert roll(loop_module, "observation_text", "ls") == (Outcome.SOLVED, at_the_reply)
    assert roll(grading_module, "run_tests", "ls") == (Outcome.GRADER_ERROR, "ValueError: cannot be read")
    assert roll(BwrapWorkspace, "diff", "ls") == (Outcome.UNSOLVED, "ValueError: cannot be read")
    assert all(tiny_image.FIXED_LINE in patch for patch in patches[:2]) and patches[2] == ""
    # A policy that cannot be asked any more is no verdict, but what it did is in the trajectory.
    lost = roll_out(stage, tiny_image.FIX, sample=11, submit=False)
    assert (lost.record.outcome, lost.record.turns) == (Outcome.INFRA, 1)
    assert tiny_image.FIXED_LINE in (folder / "trajectories" / tiny_image.TASK / "11.traj.json").read_text()


def test_changes_in_a_submodule_are_named_in_the_record(tmp_path: Path) -> None:
    repository = tiny_image.build(tmp_path / "images") / "repository.git"
    who = {
        f"GIT_{part}": "x" for part in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    }
    environment = {"GIT_INDEX_FILE": str(tmp_path / "index"), **who}

    def run(*arguments: str, stdin: str = "") -> str:
        done = git(repository, *arguments, stdin=stdin.encode(), environment=environment)
        return done.decode().strip()

    run("read-tree", tiny_image.TASK)
    run("update-index", "--index-info", stdin=f"160000 {'1' * 40}\tlibs/sub\n")
    commit = run("commit-tree", run("write-tree"), "-p", f"{tiny_image.TASK}~1", "-m", "with a submodule")
    run("update-ref", f"refs/heads/{tiny_image.TASK}", commit)
    rollout = roll_out(
        make_stage(tmp_path), f"mkdir -p libs/sub && echo x > libs/sub/new.c && {tiny_image.FIX}"
    )
    assert (rollout.record.outcome, rollout.record.in_submodules) == (Outcome.SOLVED, ("libs/sub/new.c",))
    assert b"libs/sub" not in rollout.patch
    assert RolloutRecord.from_dict(json.loads(json.dumps(rollout.record.to_dict()))) == rollout.record


def test_too_many_refused_commands_are_a_verdict(tmp_path: Path, folder: Path) -> None:
    stage = make_stage(folder, max_blocked=2)
    rollout = roll_out(stage, tiny_image.FIX, "git add -A", "pip install x", sample=7)
    record = rollout.record
    assert (record.outcome, record.reward, record.resolved) == (Outcome.BLOCKED, 0.0, False)
    assert record.blocked == {"git": 1, "install": 1} and rollout.patch == b""
    ungraded = roll_out(stage, "git add -A", "pip install x", sample=8, grade=False).record
    assert (ungraded.outcome, ungraded.reward) == (Outcome.BLOCKED, None)


HARNESSES_THAT_ARE_KILLED = """
import os, signal, sys, time
from pathlib import Path
import psutil
from lightning_smith.sandbox.bwrap import Bwrap
sandbox = Bwrap.find()
children = {}
for number in range(int(sys.argv[2])):
    harness = os.fork()
    if harness == 0:
        os.setsid()
        sandbox.run("sleep 600", tree=Path(sys.argv[1]), environment={}, timeout_s=600)
        os._exit(1)
    time.sleep(0.002 * number)
    children.update((child.pid, child) for child in psutil.Process(harness).children(recursive=True))
    getattr(os, sys.argv[3])(harness, signal.SIGKILL)
    os.waitpid(harness, 0)
gone, left = psutil.wait_procs(children.values(), timeout=5)
assert len(gone) > 20 and not left, left
"""


@pytest.mark.parametrize("kill", ["kill", "killpg"])
def test_a_killed_harness_leaves_nothing_running_at_whatever_moment(tmp_path: Path, kill: str) -> None:
    """By itself, or with the group that it leads, as a rollout is killed: while a sandbox is set up, and later."""
    command = [sys.executable, "-c", HARNESSES_THAT_ARE_KILLED, str(tmp_path), "50", kill]
    try:
        subprocess.run(command, check=True)
        deadline_s = time.monotonic() + 5
        while left := processes(f" {tmp_path} /testbed"):
            assert time.monotonic() < deadline_s, left
            time.sleep(0.1)
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if str(tmp_path) in (process.info["cmdline"] or ()):
                process.kill()


def test_a_sandbox_that_is_killed_before_it_runs_takes_its_child_along() -> None:
    process = subprocess.Popen(["bash", "-c", "sleep 3600 & echo $!; wait"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    _kill_with_children(process)
    assert process.wait(20) == -signal.SIGKILL
    assert psutil.wait_procs([child], timeout=20)[1] == []
