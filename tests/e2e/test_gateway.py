"""Rollouts through the real gateway and controller, with a trivial agent instead of a sandbox and a model."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from gateway_stack import AGENT, FOLDER, Mark, StubPolicy, make_stack

from lightning_smith.contracts.outcome import Outcome, rollout_seed
from lightning_smith.core.errors import UserError
from lightning_smith.gateway.dispatch import Finished, RolloutRequest, dispatch
from lightning_smith.gateway.launch import Stack
from lightning_smith.gateway.tokens import Role, mint

pytestmark = pytest.mark.e2e


def wait_for(condition: Callable[[], object], timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def run(
    stack: Stack, requests: list[RolloutRequest], retries: int = 1, keep_events: bool = False
) -> list[Finished]:
    return list(
        dispatch(
            stack.gateway, requests, retries=retries, check=stack.check, agent=AGENT, keep_events=keep_events
        )
    )


@pytest.fixture(scope="module")
def mark() -> Mark:
    return Mark()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, mark: Mark) -> Iterator[Stack]:
    with make_stack(tmp_path_factory.mktemp("stack"), mark) as stack:
        yield stack
    assert mark.processes() == []


def test_states_become_records(stack: Stack, mark: Mark) -> None:
    kinds = ["ok", "fail", "crash", "silent", "die", "infra", "spawn", "hang"]
    finished = run(stack, [RolloutRequest(f"{kind}-1", 2, 7, timeout_s=2) for kind in kinds])
    records = {f.record.instance_id.removesuffix("-1"): f.record for f in finished}
    assert len(finished) == len(kinds)
    assert {kind: record.outcome for kind, record in records.items()} == {
        "ok": Outcome.SOLVED,
        "fail": Outcome.UNSOLVED,
        "spawn": Outcome.SOLVED,
        **dict.fromkeys(["crash", "silent", "die", "infra", "hang"], Outcome.INFRA),
    }
    assert all((record.sample, record.seed) == (2, 7) for record in records.values())
    assert all(record.reward is None for record in records.values() if record.outcome == Outcome.INFRA)
    assert records["crash"].error == "subprocess exited with code 1: ValueError: the agent fell over"
    assert records["die"].error == "subprocess exited with code -9"
    assert records["hang"].error == "local subprocess timed out"
    # What the crashed agent printed is in the controller's log, and no rollout or child of one is left.
    assert "Traceback" in (stack.logs / "controller.log").read_text()
    assert wait_for(lambda: len(mark.processes()) == 2, 3), (
        mark.processes()
    )  # the controller and its fork server
    assert stack.gateway.list_rollouts(["queuing", "running", "succeeded", "failed"]) == []


def test_patch_for_official_grading(stack: Stack) -> None:
    request = RolloutRequest("ok-1", 0, 7, is_train=False, grade=False)
    (finished,) = run(stack, [request], keep_events=True)
    assert finished.model_patch == b"\x00\xff\x0a" and finished.record.outcome is None
    assert [event["event_type"] for event in finished.events] == ["outcome"]


def test_samples_of_a_task_get_different_replies(stack: Stack) -> None:
    seeds = [rollout_seed(42, "chat-1", sample, stage="probe") for sample in range(4)]
    requests = [RolloutRequest("chat-1", sample, seeds[sample]) for sample in range(4)]
    first, again = (run(stack, requests, keep_events=True) for _ in range(2))
    replies = {f.record.sample: f.record.error for f in first}
    assert len(set(seeds)) == len(set(replies.values())) == 4
    assert {f.record.sample: f.record.error for f in again} == replies
    triplet = next(e["data"] for e in first[0].events if e["event_type"] == "model_request")
    assert triplet["prompt_token_ids"] == [1, 2, 3]
    assert triplet["response_log_probs"] == [-1.0] * len(triplet["response_token_ids"])


def test_completions_that_cannot_be_encoded_pass(tmp_path: Path, mark: Mark) -> None:
    """Upstream's gateway answers such a completion with 500 at every attempt, and the list of its events as well."""
    with make_stack(tmp_path, mark, policy=StubPolicy(fault="surrogate")) as stack:
        (finished,) = run(stack, [RolloutRequest("chat-1", 0, 7)], keep_events=True)
    assert (finished.record.outcome, finished.record.error) == (
        Outcome.SOLVED,
        "\U0001f600 \ufffd (not text)",
    )
    assert [event["event_type"] for event in finished.events].count("model_request") == 1


def test_more_rollouts_than_the_window(stack: Stack) -> None:
    requests = [RolloutRequest(f"ok-{i // 4}", i % 4, i) for i in range(100)]
    finished = run(stack, requests)
    assert Counter((f.record.instance_id, f.record.sample) for f in finished) == Counter(
        (r.instance_id, r.sample) for r in requests
    )


def test_a_rollout_has_its_tokens_and_nothing_else(stack: Stack) -> None:
    (finished,) = run(stack, [RolloutRequest("environment-1", 0, 7, is_train=False)])
    said = json.loads(finished.record.error or "")
    rollout_id = said["now"]["AGL_EVENT_URL"].split("/")[5]
    proxy = f"{stack.gateway_url}/proxy/rollout/{rollout_id}/attempt/0/mode/val/openai/v1"
    given = {name: value for name, value in said["now"].items() if name.startswith(("AGL_", "LS_"))}
    del given["LS_TEST_MARK"]
    assert given == {
        "AGL_KEY": mint(stack.key, rollout_id, "0", Role.MODEL),
        "LS_REPORT_TOKEN": mint(stack.key, rollout_id, "0", Role.REPORT),
        "AGL_OPENAI_BASE_URL": proxy,
        "AGL_EVENT_URL": f"{stack.gateway_url}/api/rollouts/{rollout_id}/attempt/0/events",
        "LS_INSTANCE_ID": "environment-1",
        "LS_SAMPLE": "0",
        "LS_SEED": "7",
        "LS_GRADE": "1",
    }
    assert said["input"] == "" and not any(line.startswith("AGL_") for line in said["started_with"])
    assert stack.key not in (finished.record.error or "")


def test_key_is_in_no_command_line_or_environment_and_nothing_listens_outside(stack: Stack) -> None:
    addresses = []
    for service in stack.services:
        process = psutil.Process(service.pid)
        assert stack.key not in " ".join(process.cmdline())
        assert stack.key not in process.environ().values()
        addresses += [c.laddr.ip for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    assert addresses == ["127.0.0.1"] * 2
    assert stack.key not in "".join(path.read_text() for path in stack.logs.iterdir())
    assert not list((stack.work_dir / "services").iterdir())


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_killed_service_is_named_within_seconds(tmp_path: Path, victim: int) -> None:
    mark = Mark()
    began = 0.0
    with pytest.raises(UserError, match=r"ended by signal SIGKILL; .*\.log ends with:") as caught:  # noqa: SIM117
        with make_stack(tmp_path, mark) as stack:
            requests = [RolloutRequest(f"slow-{i}", 0, i) for i in range(100)]
            for number, _ in enumerate(dispatch(stack.gateway, requests, check=stack.check, agent=AGENT)):
                if number == 4:
                    os.kill(stack.services[victim].pid, signal.SIGKILL)
                    began = time.monotonic()
                    name = stack.services[victim].name
    assert time.monotonic() - began < 8
    assert str(caught.value).startswith(f"the {name} ended")
    assert mark.processes() == []


def test_the_death_of_the_fork_server_ends_the_stage(tmp_path: Path) -> None:
    mark = Mark()
    with pytest.raises(UserError, match="controller ended with exit code 1"):  # noqa: SIM117
        with make_stack(tmp_path, mark) as stack:
            requests = [RolloutRequest(f"slow-{i}", 0, i) for i in range(100)]
            for number, _ in enumerate(dispatch(stack.gateway, requests, check=stack.check, agent=AGENT)):
                if number == 4:
                    controller = psutil.Process(stack.services[-1].pid)
                    (fork_server,) = controller.children()
                    fork_server.kill()
    assert mark.processes() == []


def test_a_key_that_is_no_good_is_one_sentence(tmp_path: Path) -> None:
    for key in ("guess", "ä" * 20):
        with pytest.raises(UserError, match="the gateway's key must be 16 or more ASCII characters"):
            make_stack(tmp_path, Mark(), key=key)
    command = [sys.executable, "-m", "lightning_smith.gateway.server", "key=-", "hydra.output_subdir=null"]
    done = subprocess.run(command, input="guess\n", capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("error: the gateway's key must be 16"), done
    assert "Traceback" not in done.stderr


HOLDER = """
import sys, time
from pathlib import Path
from gateway_stack import AGENT, Mark, make_stack
from lightning_smith.core.errors import run_script
from lightning_smith.gateway.dispatch import RolloutRequest, dispatch
def main():
    with make_stack(Path(sys.argv[1]), Mark(sys.argv[2])) as stack:
        requests = [RolloutRequest(f"hang-{i}", 0, i) for i in range(20)]
        print(*[service.pid for service in stack.services], flush=True)
        list(dispatch(stack.gateway, requests, check=stack.check, agent=AGENT))
run_script(main)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_stage(tmp_path: Path, number: signal.Signals) -> None:
    mark = Mark()
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path), mark.value]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert holder.stdout
    services = [psutil.Process(int(pid)) for pid in holder.stdout.readline().split()]
    assert len(services) == 3
    assert wait_for(lambda: len(mark.processes()) == 10), "the controller, its fork server and eight rollouts"
    holder.send_signal(number)
    assert holder.wait(15) == (-9 if number == signal.SIGKILL else 143)
    assert wait_for(lambda: not mark.processes() and not any(map(psutil.Process.is_running, services)), 3)


def test_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port {port} of 127\.0\.0\.1 is in use"):  # noqa: SIM117
            with make_stack(tmp_path, Mark(), gateway_port=port):
                pass


def test_policy_server_without_token_ids_is_refused(tmp_path: Path) -> None:
    mark = Mark()
    with pytest.raises(UserError, match="answers without prompt_token_ids"):  # noqa: SIM117
        with make_stack(tmp_path, mark, policy=StubPolicy(fault="no-token-ids")):
            pass
    assert mark.processes() == []


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (StubPolicy(fault="another-model"), "serves another, not stub$"),
        (StubPolicy(fault="no-model"), "serves nothing, not stub$"),
        (StubPolicy(max_model_len=1024), "serves stub with 512 tokens, and 1024 were asked for"),
    ],
)
def test_policy_server_that_announces_something_else_is_refused(
    tmp_path: Path, policy: StubPolicy, sentence: str
) -> None:
    mark = Mark()
    with pytest.raises(UserError, match=sentence):  # noqa: SIM117
        with make_stack(tmp_path, mark, policy=policy):
            pass
    assert mark.processes() == []


def test_agent_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?s)controller ended with exit code 1.*No module named 'absent'"):  # noqa: SIM117
        with Stack(tmp_path, policy=StubPolicy(), stage_file=None, agent="absent:Agent") as stack:
            run(stack, [RolloutRequest("ok-1", 0, 1)])


def test_deep_folder_with_blank_and_accent(tmp_path: Path) -> None:
    folder = tmp_path / ("é " * 40).strip() / ("d" * 150)
    with make_stack(folder, Mark()) as stack:
        (finished,) = run(stack, [RolloutRequest("chat-1", 0, 1)])
    assert finished.record.outcome == Outcome.SOLVED
