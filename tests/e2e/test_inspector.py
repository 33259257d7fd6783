"""mini-swe-agent's own inspector opens our trajectories and shows what is in them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import shutil
import struct
import subprocess
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest
from whole_settings import agent_settings

from lightning_smith.agent.actions import Action, parse_action
from lightning_smith.agent.chat import ScriptedModel
from lightning_smith.agent.loop import SUBMIT_COMMAND, run_episode
from lightning_smith.agent.trajectory import trajectory, trajectory_path, write_trajectory
from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.sandbox.bwrap import Bwrap
from lightning_smith.sandbox.workspace import Observation

pytestmark = pytest.mark.e2e

PACKAGE = "mini-swe-agent==2.4.6"
SETTINGS = agent_settings(max_format_errors=3, system_template="You repair bugs.")
RECORD = RolloutRecord("task", 0, Outcome.UNSOLVED, 0.0, False, 3, 30, 9, 0.5, "policy", "r1", "sha256:0", 7)

BROWSE = """
import asyncio, json, sys
from pathlib import Path
from minisweagent.models.utils.content_string import get_content_string
from minisweagent.run.utilities.inspector import TrajectoryInspector

async def browse():
    app = TrajectoryInspector(sorted(Path(sys.argv[1]).rglob("*.traj.json")))
    pages = []
    async with app.run_test(size=(120, 60)) as pilot:
        for number in range(app.n_trajectories):
            for step in range(app.n_steps):
                await pilot.pause()
                pages.append([number, step, app.title, [get_content_string(m) for m in app.steps[app.i_step]]])
                await pilot.press("l")
            await pilot.press("L")
    return pages

print("PAGES " + json.dumps(asyncio.run(browse())))
"""


PARSE = """
import json, sys
from minisweagent.exceptions import FormatError
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModelConfig
from minisweagent.models.utils.actions_text import parse_regex_actions
config = LitellmTextbasedModelConfig(model_name="none")

def parse(reply):
    try:
        (action,) = parse_regex_actions(
            reply, action_regex=config.action_regex, format_error_template=config.format_error_template
        )
    except FormatError:
        return None
    return action["command"]

print("COMMANDS " + json.dumps([parse(reply) for reply in json.load(sys.stdin)]))
"""

FENCE = "```mswea_bash_command"
PIECES = [
    FENCE,
    "```",
    "\n",
    "\n\n",
    "\r\n",
    " ",
    "\t",
    "ls -l",
    "it's",
    "<<E\nE",
    "```python",
    "````",
    "é\u2028\x0b",
]


class EchoWorkspace:
    """Prints each command, in red and with a byte that is not UTF-8."""

    def execute(self, command: str, timeout_s: float) -> Observation:
        return Observation(b"\x1b[31m" + command.encode() + b"\xff\0\n", 0, False)

    def diff(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder),
        "MSWEA_SILENT_STARTUP": "1",
        "TERM": "xterm",
    }


def uv(*command: str) -> list[str]:
    return ["uv", "run", "--no-project", "--python", "3.12", "--with", PACKAGE, *command]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trajectories: one that submits after a refused command, one that never finds its form."""
    if shutil.which("uv") is None:
        pytest.skip("needs uv")
    folder = tmp_path_factory.mktemp("trajectories")
    got = subprocess.run(
        uv("python", "-c", "pass"), capture_output=True, text=True, env=environment(folder), check=False
    )
    if got.returncode != 0:
        pytest.skip(f"{PACKAGE} cannot be fetched: {got.stderr.strip().splitlines()[-1:]}")
    task = RolloutTask("task", "image", "clamp is broken \ud800", ("t.py::a",), ())
    replies = ["Look.\n```bash\nls\n```", "```bash\ngit log\n```", f"```bash\n{SUBMIT_COMMAND}\n```"]
    for sample, said in enumerate([replies, ["lone \udc80", "none", "none"]]):
        episode = run_episode(task, EchoWorkspace(), ScriptedModel(said), SETTINGS)
        record = replace(RECORD, sample=sample, outcome=episode.outcome or Outcome.UNSOLVED, reward=0.0)
        record = replace(record, error=episode.error, blocked=dict(episode.blocked), ending=episode.ending)
        document = trajectory(record, episode.messages, b"diff \xff\n", SETTINGS, {}, Bwrap)
        write_trajectory(trajectory_path(folder, "task", sample), document)
    return folder


def test_every_page_is_shown(folder: Path) -> None:
    done = subprocess.run(
        uv("python", "-c", BROWSE, str(folder)),
        capture_output=True,
        text=True,
        env=environment(folder),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.split("\n") if line.startswith("PAGES "))
    pages = json.loads(line.removeprefix("PAGES "))
    assert [page[:2] for page in pages] == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert pages[2][2] == "Trajectory 1/2 - 0.traj.json - Step 3/4"
    assert pages[0][3] == ["You repair bugs.", "clamp is broken \ufffd"]
    assert pages[1][3][0].startswith("Look.") and "<returncode>0</returncode>" in pages[1][3][1]
    assert "git is switched off" in pages[2][3][1]
    assert pages[3][3][-1] == "Submitted"
    assert pages[7][3][-1] == "The reply holds no bash blocks instead of one."


def test_it_runs_in_a_terminal(folder: Path) -> None:
    """`mini-extra inspect` draws each page on a real terminal and ends with q."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    process = subprocess.Popen(
        uv("mini-extra", "inspect", str(folder)),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(folder),
        start_new_session=True,
    )
    os.close(slave)
    os.set_blocking(master, False)
    shown, keys, deadline_s, drawn_s = b"", list("lllLlllq"), time.monotonic() + 240, time.monotonic()
    while process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.1)
        with contextlib.suppress(OSError):
            shown += os.read(master, 1_000_000)
            drawn_s = time.monotonic()
        if b"Step 1/4" in shown and keys and time.monotonic() - drawn_s > 1:  # the page stands still
            os.write(master, keys.pop(0).encode())
            drawn_s = time.monotonic()
    process.kill()
    os.close(master)
    assert process.wait() == 0, shown[-2000:]
    assert b"Traceback" not in shown and not keys
    for text in (
        b"clamp is broken",
        b"git is switched off",
        b"Submitted",
        b"Trajectory 2/2",
        b"no bash blocks",
    ):
        assert text in shown, text


def test_its_fence_is_read_as_it_reads_it(folder: Path) -> None:
    """Replies put together by lot; each says the fence first, so that it is that fence's whatever else is in it."""
    draw = random.Random(0)
    replies = [
        "".join([draw.choice(["", "THOUGHT: x\n"]), FENCE, *draw.choices(PIECES, k=draw.randrange(12))])
        for _ in range(5_000)
    ]
    done = subprocess.run(
        uv("python", "-c", PARSE),
        input=json.dumps(replies),
        capture_output=True,
        text=True,
        env=environment(folder),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.split("\n") if line.startswith("COMMANDS "))
    theirs = json.loads(line.removeprefix("COMMANDS "))
    actions = [parse_action(reply) for reply in replies]
    assert [action.command if isinstance(action, Action) else None for action in actions] == theirs
    assert sum(command is not None for command in theirs) > 400 and "" in theirs
