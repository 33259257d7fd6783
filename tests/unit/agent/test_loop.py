"""The agent's loop with a scripted policy, its client against a small HTTP server, and what it writes down."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import whole_settings
import yaml

from lightning_smith.agent.chat import (
    RETRY_WAITS_S,
    ChatModel,
    ContextOverflowError,
    JsonService,
    ModelError,
    Reply,
    ScriptedModel,
)
from lightning_smith.agent.guard import SENTENCES, Kind
from lightning_smith.agent.loop import SUBMIT_COMMAND, Episode, run_episode
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import RolloutTask, TaskFile
from lightning_smith.core.errors import UserError
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.miniature.policy import conversation
from lightning_smith.sandbox.workspace import Observation, observation_text

SETTINGS: dict[str, Any] = {
    **whole_settings.AGENT,
    "max_turns": 4,
    "max_tokens": 64,
    "observation_chars": 2000,
    "command_timeout_s": 10,
    "rollout_timeout_s": 120,
    "max_format_errors": 2,
    "grading_timeout_s": 15,
    "system_template": "Fix the bug. Reply with one bash block.",
    "instance_template": "{problem_statement}",
}
TASK = RolloutTask("i", "image", "clamp is {problem_statement} \\1 broken", ("t.py::a",), ())


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


class FakeWorkspace:
    """Answers each command with the next observation; the last one is repeated."""

    def __init__(self, *observations: Observation | UserError) -> None:
        self.observations = list(observations) or [Observation(b"out\n", 0, False)]
        self.commands: list[str] = []
        self.limits: list[float] = []

    def execute(self, command: str, timeout_s: float) -> Observation:
        self.commands.append(command)
        self.limits.append(timeout_s)
        observation = self.observations.pop(0) if len(self.observations) > 1 else self.observations[0]
        if isinstance(observation, UserError):
            raise observation
        return observation

    def diff(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


def episode(replies: list[str], workspace: FakeWorkspace | None = None, **settings: Any) -> Episode:
    limits = AgentSettings.from_dict({**SETTINGS, **settings})
    return run_episode(TASK, workspace or FakeWorkspace(), ScriptedModel(replies), limits)


def test_conversation_is_the_one_the_tiny_policy_knows() -> None:
    workspace = FakeWorkspace(Observation(b"3:x = 1\n", 0, False), Observation(b"", 0, False))
    result = episode([bash("look"), bash("edit"), bash(SUBMIT_COMMAND)], workspace)
    said = [(message["role"], message["content"]) for message in result.messages]
    assert said == [
        ("system", conversation.SYSTEM_PROMPT),
        ("user", TASK.problem_statement),
        ("assistant", conversation.bash_block("look")),
        ("user", conversation.observation(0, "3:x = 1\n")),
        ("assistant", conversation.bash_block("edit")),
        ("user", conversation.observation(0, "")),
        ("assistant", conversation.bash_block(conversation.SUBMIT_COMMAND)),
    ]
    assert result.submitted and result.turns == 3 and workspace.commands == ["look", "edit"]


def test_submission_at_the_end_of_a_longer_command() -> None:
    mark = Observation(b"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0, False)
    assert episode([bash(f"sed x && {SUBMIT_COMMAND}")], FakeWorkspace(mark)).submitted
    failed = Observation(mark.output, 1, False)
    assert not episode([bash(f"{SUBMIT_COMMAND}; false")] * 4, FakeWorkspace(failed)).submitted


def test_turns_run_out() -> None:
    result = episode([bash("ls")] * 4)
    assert result.outcome is Outcome.AGENT_LIMIT and result.turns == 4
    assert result.error == "no submission within 4 turns"


def test_format_errors_in_a_row() -> None:
    result = episode(["no block", bash("ls"), "no block", "no block"])
    assert result.outcome is Outcome.FORMAT_ERROR and result.turns == 4
    assert "exactly one block" in result.messages[3]["content"]


def test_one_format_error_may_end_it() -> None:
    result = episode(["no block"], max_format_errors=1)
    assert result.outcome is Outcome.FORMAT_ERROR and result.turns == 1


class CutModel:
    """Says the same reply again and again, always cut at the token limit."""

    def reply(self, messages: list[dict[str, Any]]) -> Reply:
        return Reply("I will\n```bash\nls", finish_reason="length", prompt_tokens=10 * len(messages))


def test_a_cut_reply_is_named() -> None:
    workspace = FakeWorkspace()
    result = run_episode(TASK, workspace, CutModel(), AgentSettings.from_dict(SETTINGS))
    said = "The reply was cut at its limit of 64 tokens. A block does not end with a line of three backticks."
    assert result.messages[3]["content"].startswith(said) and result.error == said
    assert result.outcome is Outcome.FORMAT_ERROR and workspace.commands == []
    assert (result.prompt_tokens, result.max_prompt_tokens) == (20 + 40, 40)


def test_a_refused_command_costs_a_turn_and_tells_why() -> None:
    workspace = FakeWorkspace()
    replies = [bash("git log"), bash("ls; $X"), bash("cd /tmp && pip install x"), bash(SUBMIT_COMMAND)]
    result = episode(replies, workspace)
    assert result.submitted and result.turns == 4 and workspace.commands == ["ls; $X"]
    assert (result.blocked, result.opaque) == ({"git": 1, "install": 1}, 1)
    refused = result.messages[3]
    assert refused["role"] == "user" and refused["extra"]["blocked"] == {"kind": "git", "program": "git"}
    assert refused["content"] == (f"<returncode>1</returncode>\n<output>\n{SENTENCES[Kind.GIT]}\n</output>")
    assert "blocked" not in result.messages[5]["extra"]


def test_a_submission_with_git_is_refused_not_taken() -> None:
    workspace = FakeWorkspace()
    result = episode([bash(f"{SUBMIT_COMMAND} && git add -A && git diff --cached")] * 4, workspace)
    assert not result.submitted and workspace.commands == []


def test_too_many_refused_commands_end_it() -> None:
    replies = [bash("git log"), bash("ls"), bash("curl x"), bash("git diff")]
    result = episode(replies, max_blocked=3)
    assert result.outcome is Outcome.BLOCKED and result.turns == 4
    assert result.error == "3 refused commands, the last one for git"
    assert result.messages[-1]["extra"]["blocked"]["kind"] == "git"
    assert not episode([*replies[:3], bash(SUBMIT_COMMAND)], max_blocked=3).error


def test_time_runs_out() -> None:
    workspace = FakeWorkspace()
    result = episode([bash("ls")] * 4, workspace, rollout_timeout_s=1e-9)
    assert result.outcome is Outcome.AGENT_LIMIT and result.turns == 0
    episode([bash("ls")] * 4, workspace, rollout_timeout_s=5)
    assert all(limit <= 5 for limit in workspace.limits)


def test_a_broken_sandbox_is_no_verdict() -> None:
    result = episode([bash("ls")], FakeWorkspace(UserError("the sandbox did not start")))
    assert result.outcome is Outcome.INFRA and result.error == "the sandbox did not start"
    assert result.messages[-1]["role"] == "assistant"


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        (
            Observation(b"caf\xc3\xa9 \xff\n", 0, False),
            "<returncode>0</returncode>\n<output>\ncafé \ufffd\n</output>",
        ),
        (
            Observation(b"partial", -1, True, stopped="ran over its limit of 2 s"),
            "<returncode>-1</returncode>\n<output>\npartial\n[stopped: it ran over its limit of 2 s]\n</output>",
        ),
        (
            Observation(b"0123456789abcdefghij", 1, False),
            "<returncode>1</returncode>\n<output>\n01234\n[... 10 bytes left out ...]\nfghij</output>",
        ),
        (
            Observation(b"0123456789abcdefghij", 1, False, dropped_bytes=1000),
            "<returncode>1</returncode>\n<output>\n01234\n[... 1010 bytes left out ...]\nfghij</output>",
        ),
        (
            Observation("ééééééééééééé".encode(), 0, False),
            "<returncode>0</returncode>\n<output>\nééééé\n[... 6 bytes left out ...]\nééééé</output>",
        ),
    ],
)
def test_observation_text(observation: Observation, text: str) -> None:
    assert observation_text(observation, 10) == text


class Server:
    """Answers each request with the next of some (status, headers, body); keeps what was asked."""

    def __init__(self, port: int = 0) -> None:
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.asked: list[tuple[str, dict[str, Any], str | None]] = []
        self.connections: set[int] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(length))
                server.asked.append((self.path, body, self.headers["Authorization"]))
                server.connections.add(self.client_address[1])
                status, headers, answer = server.answers.pop(0)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = "X-Hang-Up" in headers

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def answer(content: str | None = "hi") -> dict[str, Any]:
    return {
        "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    }


def client(server: Server, waited: list[float] | None = None) -> ChatModel:
    sleep = (waited if waited is not None else []).append
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    return ChatModel(server.url, "key", model="policy", seed=5, max_tokens=64, extra=extra, sleep=sleep)


MESSAGES = [{"role": "user", "content": "lone \ud800 surrogate", "extra": {"timestamp": 1.0}}]


def test_request_and_reply(server: Server) -> None:
    server.answers = [(200, {}, answer()), (200, {}, answer(None))]
    model = client(server)
    reply = model.reply(MESSAGES)
    assert (reply.content, reply.prompt_tokens, reply.completion_tokens) == ("hi", 7, 2)
    assert model.reply(MESSAGES).content == ""
    path, body, authorization = server.asked[0]
    assert path == "/v1/chat/completions" and authorization == "Bearer key"
    assert body == {
        "chat_template_kwargs": {"enable_thinking": False},
        "model": "policy",
        "seed": 5,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "lone \ud800 surrogate"}],
    }
    assert len(server.connections) == 1


def test_a_paused_gateway_is_waited_for(server: Server) -> None:
    paused = (429, {"Retry-After": "5", "X-Agl-Paused": "true"}, {"error": "gateway paused"})
    server.answers = [paused] * 10 + [(200, {}, answer())]
    waited: list[float] = []
    reply = client(server, waited).reply(MESSAGES)
    assert reply.content == "hi" and waited == [5.0] * 10 and reply.paused_s == 50.0


def test_a_pause_counts_for_no_limit(server: Server) -> None:
    paused = (429, {"Retry-After": "1000"}, {})
    replies = [bash("ls"), bash(SUBMIT_COMMAND)]
    server.answers = [paused, (200, {}, answer(replies[0])), paused, (200, {}, answer(replies[1]))]
    result = run_episode(
        TASK, FakeWorkspace(), client(server), AgentSettings.from_dict({**SETTINGS, "max_turns": 2})
    )
    assert result.submitted and result.turns == 2 and result.paused_s == 2000.0
    assert (result.prompt_tokens, result.completion_tokens) == (14, 4)


def test_errors_of_the_service_are_tried_again(server: Server) -> None:
    server.answers = [(502, {}, {"detail": "x"}), (429, {}, {}), (200, {}, answer())]
    waited: list[float] = []
    reply = client(server, waited).reply(MESSAGES)
    assert reply.content == "hi" and waited == [1.0, 2.0] and reply.paused_s == 3.0


def test_an_engine_that_says_when_it_is_back_is_waited_for(server: Server) -> None:
    server.answers = [(503, {"Retry-After": "20"}, {})] * 9 + [(200, {}, answer())]
    waited: list[float] = []
    assert client(server, waited).reply(MESSAGES).paused_s == 180.0 and waited == [20.0] * 9


def test_a_gateway_that_restarts_costs_neither_turn_nor_time() -> None:
    """Connections are refused until the third wait, in which the gateway comes up again on its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    revived: list[Server] = []
    waited: list[float] = []

    def sleep(wait_s: float) -> None:
        waited.append(wait_s)
        if len(waited) == 3:
            revived.append(Server(port))
            revived[0].answers = [(503, {}, {}), (200, {}, answer(bash(SUBMIT_COMMAND)))]

    model = ChatModel(f"http://127.0.0.1:{port}/v1", "", model="p", seed=1, max_tokens=8, sleep=sleep)
    result = run_episode(TASK, FakeWorkspace(), model, AgentSettings.from_dict({**SETTINGS, "max_turns": 1}))
    revived[0].close()
    assert result.submitted and result.turns == 1 and waited == [1.0, 2.0, 4.0, 8.0]
    assert result.paused_s == 15.0 and result.model_s < 5


def test_a_connection_that_the_server_closed_is_opened_again(server: Server) -> None:
    server.answers = [(200, {"X-Hang-Up": "1"}, answer()), (200, {}, answer())]
    model, waited = client(server), []
    model.reply(MESSAGES)
    assert model.reply(MESSAGES).content == "hi" and not waited


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (
            [(503, {}, {"detail": "No servers available"})] * (len(RETRY_WAITS_S) + 1),
            "answered 503.*No servers available",
        ),
        ([(404, {}, {"detail": "Rollout not found"})], "answered 404.*Rollout not found"),
        ([(401, {}, {})], "answered 401"),
        ([(400, {}, {"message": "unknown field seed"})], "answered 400.*unknown field"),
        (
            [(400, {}, {"message": "'max_tokens' is not supported with this model"})],
            "answered 400.*max_tokens",
        ),
        ([(200, {}, {})], "no chat completion"),
        ([(200, {}, [])], "no chat completion"),
        ([(200, {}, {"choices": []})], "no chat completion"),
        ([(200, {}, {"choices": ["x"]})], "no chat completion"),
        ([(200, {}, {"choices": [{"message": {"content": ["x"]}}]})], "no chat completion"),
        ([(200, {}, {**answer(), "usage": {"prompt_tokens": "many"}})], "no chat completion"),
        ([(200, {}, b"<html>")], "no JSON"),
    ],
)
def test_what_the_service_does_is_no_verdict(server: Server, answers: list[Any], sentence: str) -> None:
    server.answers = list(answers)
    with pytest.raises(ModelError, match=sentence):
        client(server).reply(MESSAGES)
    server.answers = list(answers)
    settings = AgentSettings.from_dict(SETTINGS)
    assert run_episode(TASK, FakeWorkspace(), client(server), settings).outcome is Outcome.INFRA


def test_a_reply_that_cannot_be_encoded_is_a_format_error(server: Server) -> None:
    """Neither what is sent, nor what is kept, nor the record holds a lone surrogate; a pair is a character."""
    broken, marked = answer(bash("echo \udce9 '\ud83d\ude00'")), answer(bash("echo \ufffd"))
    marked["choices"][0]["not_text"] = True  # as the gateway marks what it could not pass on
    server.answers = [(200, {}, body) for body in (broken, answer(bash("echo \ufffd")), marked, broken)]
    workspace = FakeWorkspace()
    settings = AgentSettings.from_dict(SETTINGS)
    result = run_episode(
        replace(TASK, problem_statement="broken: \ud800"), workspace, client(server), settings
    )
    assert result.outcome is Outcome.FORMAT_ERROR and result.turns == 4
    assert result.error == "The reply holds characters that cannot be encoded (lone surrogates)."
    assert workspace.commands == ["echo \ufffd"]
    assert result.messages[2]["content"] == bash("echo \ufffd '\U0001f600'")
    assert result.messages[1]["content"] == "broken: \ufffd"
    for kept in (*(body for _, body, _ in server.asked), *result.messages):
        json.dumps(kept, ensure_ascii=False).encode()


def test_an_error_of_the_harness_keeps_what_was_done() -> None:
    """What the policy said or left has met it: the rules of a limit hold. Where the policy is asked, they do not."""

    class Failing(FakeWorkspace):
        def execute(self, command: str, timeout_s: float) -> Observation:
            if command == "fail":
                raise ValueError("embedded null byte")
            return super().execute(command, timeout_s)

    result = episode([bash("edit"), bash("fail"), bash(SUBMIT_COMMAND)], Failing())
    assert (result.outcome, result.turns, len(result.messages)) == (Outcome.AGENT_LIMIT, 2, 5)
    assert result.error == "the harness failed at the last reply: ValueError: embedded null byte"

    class Broken:
        def reply(self, messages: list[dict[str, Any]]) -> Reply:
            raise ValueError("no model")

    result = run_episode(TASK, FakeWorkspace(), Broken(), AgentSettings.from_dict(SETTINGS))
    assert (result.outcome, result.error) == (
        Outcome.INFRA,
        "the policy cannot be asked: ValueError: no model",
    )


def test_nobody_there_is_no_verdict(server: Server) -> None:
    server.close()
    with pytest.raises(ModelError, match="cannot be reached: ConnectionRefusedError"):
        client(server).reply(MESSAGES)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 1024 tokens. However, your request has 2000 input tokens.",
        "'max_tokens' or 'max_completion_tokens' is too large: 12288. This model's context is smaller.",
        "max_tokens=12288 cannot be greater than max_model_len=8192.",
        "The decoder prompt (length 90000) is longer than the maximum model length of 81920.",
        "the conversation has 1100 tokens and the model's context is 1024: no room for an answer",
    ],
)
def test_a_full_context_is_the_policys_limit(server: Server, message: str) -> None:
    body = {"error": {"message": message}}
    server.answers = [(400, {}, body)] * 2
    with pytest.raises(ContextOverflowError):
        client(server).reply(MESSAGES)
    settings = AgentSettings.from_dict(SETTINGS)
    result = run_episode(TASK, FakeWorkspace(), client(server), settings)
    assert result.outcome is Outcome.AGENT_LIMIT and "context" in (result.error or "")


def test_events_are_posted_with_the_key(server: Server) -> None:
    server.answers = [(200, {}, {"ok": True})]
    assert JsonService("key").post(f"{server.url}/events?x=1", {"a": 1}).json() == {"ok": True}
    assert server.asked == [("/v1/events?x=1", {"a": 1}, "Bearer key")]


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), newline="")
    return path


def row(instance_id: str = "a.b__1", **changes: Any) -> dict[str, Any]:
    tests = {"FAIL_TO_PASS": ["t/test_a.py::x[1::2]", "t/test_b.py::y"], "PASS_TO_PASS": ["t/test_a.py::z"]}
    base = {
        "instance_id": instance_id,
        "image_name": "swesmith/x",
        "problem_statement": "s",
        "patch": "",
        **tests,
    }
    return {**base, **changes}


def test_tasks_are_found_by_id(tmp_path: Path) -> None:
    statement = "one\u2028two\u0085three " + "x" * 140 * 1024
    listed = row("b", problem_statement=statement, FAIL_TO_PASS='["q.py::r"]', PASS_TO_PASS="[]")
    tasks = TaskFile(write_rows(tmp_path / "tasks.jsonl", row(), listed, row("c", problem_statement=None)))
    assert len(tasks) == 3 and tasks.image_names == {"swesmith/x"}
    assert tasks["b"].problem_statement == statement and tasks["b"].test_files == ("q.py",)
    assert tasks["a.b__1"].test_files == ("t/test_a.py", "t/test_b.py")
    assert tasks["c"].problem_statement == ""
    with pytest.raises(UserError, match="has no task d"):
        tasks["d"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"FAIL_TO_PASS": [1]}, "line 1 is not a SWE-smith row"),
        ({"FAIL_TO_PASS": "t.py::a"}, "line 1 is not a SWE-smith row"),
        ({"image_name": None}, "line 1 is not a SWE-smith row .*null stands where text is wanted"),
        ({"instance_id": 7}, "line 1 is not a SWE-smith row .*7 stands where text is wanted"),
        ({"problem_statement": ["It is slow."]}, "line 1 is not a SWE-smith row .*where text is wanted"),
        ({"FAIL_TO_PASS": '"t.py::a"'}, "line 1 is not a SWE-smith row .*no list of strings"),
        ({"PASS_TO_PASS": '{"t.py::a": 1}'}, "line 1 is not a SWE-smith row .*no list of strings"),
        ({"PASS_TO_PASS": "[" * 5000}, "line 1 is not a SWE-smith row .*no list of strings"),
        ({"PASS_TO_PASS": {"t.py::a": 1}}, "line 1 is not a SWE-smith row .*no list of strings"),
        ({"image_name": "x", "instance_id": "../up"}, "no name of a folder"),
    ],
)
def test_malformed_tasks_are_named(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        TaskFile(write_rows(tmp_path / "tasks.jsonl", row(**changes)))


@pytest.mark.parametrize(
    ("thinking", "fields"),
    [
        (False, {"chat_template_kwargs": {"enable_thinking": False}}),
        (True, {"chat_template_kwargs": {"enable_thinking": True}}),
        (None, {}),
    ],
)
def test_thinking_is_a_field_of_every_request(thinking: bool | None, fields: dict[str, Any]) -> None:
    assert AgentSettings.from_dict({**SETTINGS, "thinking": thinking}).request == fields


def test_gradings_at_a_time_decide_nothing() -> None:
    one, four = (AgentSettings.from_dict({**SETTINGS, "gradings": number}) for number in (1, 4))
    assert one != four and one.deciding() == four.deciding()
    assert one.deciding() != AgentSettings.from_dict({**SETTINGS, "max_turns": 99}).deciding()
    with pytest.raises(UserError, match=r"agent\.gradings: 0 must be at least 1"):
        AgentSettings.from_dict({**SETTINGS, "gradings": 0})


def test_the_published_limits() -> None:
    """Those of smith_agent.py and its job template in Agent Lightning's example."""
    config = yaml.safe_load((REPOSITORY / "config.yaml").read_text())
    settings = AgentSettings.from_dict(config["agent"])
    assert (settings.max_turns, settings.max_tokens, settings.observation_chars) == (100, 12288, 6000)
    assert (settings.command_timeout_s, settings.rollout_timeout_s, settings.thinking) == (120, 5400, False)
    assert settings.max_format_errors == 3 and settings.grading_timeout_s == 600 and settings.gradings == 2
    shown = observation_text(Observation(b"h" * 5000 + b"t" * 5000, 0, False), settings.observation_chars)
    assert "h" * 3000 + "\n[... 4000 bytes left out ...]\n" + "t" * 3000 in shown
    for recipe in config["recipes"].values():
        assert recipe["turn_penalty"] == {"start": 80, "end": 100, "most": 0.1}
        assert recipe["prompt_penalty"] == {"start": 50_000, "end": 64_000, "most": 0.1}


def test_stage_settings_survive_the_file(tmp_path: Path) -> None:
    settings = StageSettings(
        tasks=tmp_path / "tasks.jsonl",
        images=tmp_path / "work/images",
        model="policy",
        model_revision="r1",
        agent=AgentSettings.from_dict(SETTINGS),
        trajectories=tmp_path / "t",
        request={"top_p": 1.0},
    )
    settings.write(tmp_path / "stage.json")
    assert StageSettings.read(tmp_path / "stage.json") == settings
    assert settings.grades_folder == tmp_path / "work/grades"
    assert settings.testbed.parts[-4:] == ("testbed", ".venv", "bin", "python")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"colour": 1}, "key colour: there is no such key"),
        ({"agent": {**SETTINGS, "max_turn": 3}}, "key agent.max_turn: there is no such key .write max_turn"),
        (
            {"agent": {k: v for k, v in SETTINGS.items() if k != "max_tokens"}},
            "agent.max_tokens: it is missing",
        ),
        ({"agent": {**SETTINGS, "max_turns": 0}}, "agent.max_turns: 0 must be at least 1"),
        ({"agent": {**SETTINGS, "max_blocked": 0}}, "agent.max_blocked: 0 must be at least 1"),
        (
            {"agent": {**SETTINGS, "instance_template": "solve it"}},
            "instance_template: .solve it. is refused .write {problem_sta",
        ),
    ],
)
def test_wrong_stage_settings_are_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    values = {"tasks": "t", "images": "i", "model": "m", "agent": SETTINGS, **change}
    (tmp_path / "stage.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=sentence):
        StageSettings.read(tmp_path / "stage.json")
