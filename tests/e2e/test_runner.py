"""Our controller beside Agent Lightning's own, with agents of somebody else's: both as processes, at one gateway."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway_stack import FOLDER

from lightning_smith.core.process import free_port
from lightning_smith.gateway.client import Gateway

pytestmark = pytest.mark.e2e

KEY = f"sk-run-{secrets.token_hex(16)}"

ENDINGS = {
    "ends": None,
    "awaits": None,
    "exits null": None,
    "exits 0": None,
    "exits false": None,
    "exits 3": 3,
    "exits 300": 44,
    "exits -1": 255,
    'exits "a reason"': 1,
    "leaves": 5,
    "raises": 1,
    "interrupted": -2,
    "killed": -15,
    "threads": 6,
    "handlers": 7,
    "buffers": None,
    "logs": None,
    "remembers": None,
    "is_a_program": None,
    "has_children": None,
    "has_variables": None,
}
"""What a rollout does, and the exit status that fails it, None if it succeeds."""

VARIABLES = {
    "PYTHONPATH": str(FOLDER),
    "REQUESTS_CA_BUNDLE": "/certificates.pem",
    "OF_THE_AGENT": "x y='z'",
    "OF_NOBODY": "1",
    "BEATING": "1",
    "TAKEN_AWAY": "by the agent's import",
}

ENV_MAP = {"KIND": "input.kind", "OF_BOTH": "the rollout's"}
"""Variables of every rollout; the agent's import sets the second anew."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "lightning_smith.gateway.server",
        "host=127.0.0.1",
        f"port={port}",
        "key=-",
    ]
    folder = tmp_path_factory.mktemp("gateway")
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [*command, "hydra.output_subdir=null"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder
        ) as process,
        Gateway(f"http://127.0.0.1:{port}", KEY) as gateway,
    ):
        assert process.stdin
        process.stdin.write(KEY.encode() + b"\n")
        process.stdin.close()
        while not gateway.health():
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        yield gateway
        process.terminate()


def command(gateway: Gateway, module: str, key: str, *options: str) -> list[str]:
    """The command of a controller as its documentation has it, hydra's own logging included."""
    local = ["runner_type=local", "local_runner.poll_interval=0.1", "hydra.run.dir=."]
    return [
        sys.executable,
        "-m",
        module,
        *local,
        f"agl_server.url={gateway.url}",
        f"agl_server.key={key}",
        *options,
    ]


@contextmanager
def controller(folder: Path, *words: str, variables: dict[str, str] = VARIABLES) -> Iterator[None]:
    folder.mkdir()
    with (
        (folder / "output").open("wb") as log,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder, env={**os.environ, **variables}
        ) as process,
    ):
        assert process.stdin
        process.stdin.write(KEY.encode() + b"\n")
        process.stdin.close()
        try:
            yield
            assert process.poll() is None, (folder / "output").read_text()
        finally:
            process.terminate()


def run(
    gateway: Gateway, folder: Path, kinds: list[str], agent: str, prefix: str
) -> dict[str, tuple[str, str]]:
    """State and error message of each rollout, once all have ended; what they say of themselves is in `folder`."""
    ids = {f"{prefix}-{number}": kind for number, kind in enumerate(kinds)}
    gateway.create_rollouts(
        [
            {
                "rollout_id": id_,
                "input": {"kind": kind},
                "config": {
                    "timeout_seconds": 120,
                    "local": {"agent_class": agent, "env_map": ENV_MAP | {"FACTS": str(folder)}},
                },
            }
            for id_, kind in ids.items()
        ]
    )
    deadline_s = time.monotonic() + 150
    while any(row["rollout_id"] in ids for row in gateway.list_rollouts()):
        assert time.monotonic() < deadline_s, (folder / "output").read_text()
        time.sleep(0.1)
    ended = {kind: gateway.rollout(id_)["status"] for id_, kind in ids.items()}
    return {kind: (status["state"], status["error_message"] or "") for kind, status in ended.items()}


def facts(folder: Path) -> dict[str, Any]:
    """What the rollouts left in the folder, by file."""
    left = {path.name: path.read_text() for path in folder.iterdir() if path.name not in ("output", ".hydra")}
    del left["has_variables"]
    return {name: text for name, text in left.items() if name not in ("__main__.log", "runner.log")}


def assert_endings(found: dict[str, tuple[str, str]]) -> None:
    wanted = {
        kind: ("succeeded", "") if status is None else ("failed", f"subprocess exited with code {status}")
        for kind, status in ENDINGS.items()
    }
    assert {kind: (state, message.partition(":")[0]) for kind, (state, message) in found.items()} == wanted


@pytest.fixture(scope="module")
def stock(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Facts of rollouts under the stock controller."""
    folder = tmp_path_factory.mktemp("controllers") / "same"
    with controller(folder, *command(gateway, "agentlightning.controller", KEY)):
        assert_endings(run(gateway, folder, list(ENDINGS), "foreign_agent:Agent", "stock"))
    assert json.loads((folder / "has_variables").read_text())["OF_NOBODY"] == "1"
    return facts(folder)


RUNNER = "lightning_smith.gateway.runner"


@pytest.mark.parametrize("agent", ["", "foreign_agent:Agent"])
def test_a_rollout_is_what_the_stock_controller_makes_of_it(
    gateway: Gateway, stock: dict[str, Any], tmp_path: Path, agent: str
) -> None:
    """The agent imported by each rollout, or once."""
    folder = tmp_path / "same"
    options = ["+variables=[OF_THE_AGENT,TAKEN_AWAY]", *([f"+agent={agent}"] if agent else [])]
    with controller(folder, *command(gateway, RUNNER, "-", *options)):
        found = run(
            gateway,
            folder,
            list(ENDINGS),
            agent or "foreign_agent:Agent",
            f"ours-{agent.replace(':', '-').replace('.', '_')}",
        )
    assert_endings(found)
    assert found['exits "a reason"'][1].endswith(": a reason")
    # Folders and the agent's name are the only differences.
    here, there = json.loads(facts(folder)["is_a_program"]), json.loads(stock["is_a_program"])
    assert here.pop("folder") == str(folder) and there.pop("folder").endswith("/same")
    assert here.pop("argv") == ["-c", agent or "foreign_agent:Agent"] and there.pop("argv")[0] == "-c"
    assert here == there and here["import"] == ["set", "the import's", None]
    assert facts(folder) | {"is_a_program": ""} == stock | {"is_a_program": ""}
    assert facts(folder)["logs.opened"] == "its own line\n" and facts(folder)["logs.log"] == "what it did\n"
    assert facts(folder)["remembers"] == "what was kept back\n"
    variables = json.loads((folder / "has_variables").read_text())
    assert {name: variables.get(name) for name in VARIABLES} == {
        **VARIABLES,
        "OF_NOBODY": None,
        "BEATING": None,
        "TAKEN_AWAY": None,
    }
    said = (folder / "output").read_text()
    assert said.count("Variables that rollouts do not get") == 1 and "'OF_NOBODY'" in said and KEY not in said
    assert "import it anew" not in said, "its rollouts are forks of the import"
    assert KEY not in json.dumps(variables)


def test_an_import_that_a_fork_cannot_stand_in_for_is_made_anew(gateway: Gateway, tmp_path: Path) -> None:
    """It reads a variable of its rollout, or starts a thread as well."""
    for number, (named, note) in enumerate([("", "it reads"), (",BEATING", "it starts threads")]):
        folder = tmp_path / str(number)
        options = [f"+variables=[OF_THE_AGENT{named},KIND]", "+agent=foreign_import:Agent"]
        with controller(
            folder, *command(gateway, RUNNER, "-", *options), variables={**VARIABLES, "KIND": "none"}
        ):
            found = run(gateway, folder, ["is_imported", "exits 3"], "foreign_import:Agent", f"anew{number}")
        assert found["is_imported"] == ("succeeded", "")
        assert found["exits 3"] == ("failed", "subprocess exited with code 3")
        assert json.loads((folder / "is_imported").read_text()) == ["is_imported", bool(named)]
        assert note in (folder / "output").read_text()


def test_forks_draw_differently(gateway: Gateway, tmp_path: Path) -> None:
    """The agent named in the stock controller's other form."""
    folder = tmp_path / "same"
    with controller(folder, *command(gateway, RUNNER, "-", "+agent=foreign_agent.Agent")):
        run(gateway, folder, [f"draws {number}" for number in range(4)], "foreign_agent.Agent", "draws")
    assert len({path.read_text() for path in folder.glob("draws*")}) == 4


def test_an_id_that_gets_no_token_fails_at_once(gateway: Gateway, tmp_path: Path) -> None:
    with controller(tmp_path / "same", *command(gateway, RUNNER, "-")):
        found = run(gateway, tmp_path / "same", ["ends"], "foreign_agent:Agent", "a.b")
    (state, message) = found["ends"]
    assert state == "failed" and message.startswith(
        "the rollout could not start: 'a.b-0' is no id of a rollout"
    )


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        ([f"agl_server.key={KEY}"], {}, "give agl_server.key=- and pass the key"),
        (["agl_server.key=${oc.env:AGL_KEY}"], {"AGL_KEY": KEY}, "give agl_server.key=- and pass the key"),
        (
            [],
            {"AGL_KEY": KEY},
            "as AGL_KEY, where every rollout can read it: start it without (`env -u AGL_KEY ...`)",
        ),
        (["+variables=HOME"], {}, "variables is HOME, and not a list of names: write +variables=[NAME,...]"),
        (["+variables=[7]"], {}, "variables is [7], and not a list of names: write +variables=[NAME,...]"),
        (["+variables=[ABSENT]"], {}, "variables names ABSENT, which this process does not have"),
        (["runner_type=k8s"], {}, "say runner_type=local"),
    ],
)
def test_what_would_show_the_key_or_cannot_work_is_one_sentence(
    gateway: Gateway, tmp_path: Path, words: list[str], variables: dict[str, str], sentence: str
) -> None:
    done = subprocess.run(
        command(gateway, RUNNER, "-", *words),
        input=f"{KEY}\n",
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.startswith("error: ") and sentence in done.stderr
    assert KEY not in done.stderr + done.stdout and "Traceback" not in done.stderr
