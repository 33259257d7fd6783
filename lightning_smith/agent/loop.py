"""The agent's loop: ask the policy, run its command, show it the output, until it submits or meets a limit.

    episode = run_episode(task, workspace, model, settings)

The same loop, limits and wording serve probe, training and evaluation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lightning_smith.agent.actions import Action, FormatError, parse_action
from lightning_smith.agent.chat import ContextOverflowError, Message, Model, ModelError, Reply
from lightning_smith.agent.guard import Refusal, inspect
from lightning_smith.config.agent import AgentSettings
from lightning_smith.contracts.outcome import Ending, Outcome, decide_outcome
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.errors import UserError, unforeseen
from lightning_smith.core.text import encodable
from lightning_smith.sandbox.workspace import Observation, Workspace, observation_text

SUBMIT_MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT_COMMAND = f"echo {SUBMIT_MARK}"
"""Submits; so does a longer command that succeeds and prints the mark as its first line."""

FORMAT_ERROR_TEMPLATE = (
    "{reason} Reply with exactly one block, closed by a line of its own:\n\n```bash\nyour command\n```"
)


NOT_TEXT = FormatError("The reply holds characters that cannot be encoded (lone surrogates).")


@dataclass
class Episode:
    """How a conversation went."""

    messages: list[Message]
    """With `role`, `content` and, in `extra`, what the trajectory keeps."""
    ending: Ending = Ending.SUBMITTED
    error: str | None = None
    """What ended it, as a sentence, if it did not submit."""
    turns: int = 0
    """Replies of the policy."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    max_prompt_tokens: int = 0
    """Of the longest prompt."""
    blocked: Counter[str] = field(default_factory=Counter)
    """Refused commands by kind."""
    opaque: int = 0
    """Commands whose text does not say what they start."""
    model_s: float = 0.0
    """Seconds spent waiting for the policy, pauses of the gateway left out."""
    paused_s: float = 0.0
    workbench_failed: bool = False
    """Whether it ended because a command could not be run: by what commands did to the workbench, or by the machine."""

    @property
    def submitted(self) -> bool:
        return self.ending is Ending.SUBMITTED

    @property
    def outcome(self) -> Outcome | None:
        """What is known of the outcome before the tests; None if it submitted."""
        return decide_outcome(self.ending, graded=False)


def run_episode(
    task: RolloutTask,
    workspace: Workspace,
    model: Model,
    settings: AgentSettings,
    *,
    on_message: Callable[[Message], None] = lambda message: None,
) -> Episode:
    """Run one conversation; never raises for what policy, services or sandbox do, but says so in `ending`.

    Whatever else goes wrong between two replies is an error of this harness that the last reply met: it ends the
    conversation as a limit does, so that what was done before counts by the same rules. `on_message` is called with
    each message as it is added.
    """
    episode = _Conversation(task, workspace, model, settings, on_message)
    try:
        episode.run()
    except ContextOverflowError as error:
        episode.end(Ending.LIMIT, f"the conversation exceeds the policy's context: {error}")
    except (UserError, OSError) as error:
        episode.end(Ending.FAILURE, str(error))
    except Exception as error:
        episode.end(Ending.LIMIT, f"the harness failed at the last reply: {unforeseen(error)}")
    return episode.result


class _Conversation:
    """State of `run_episode`."""

    def __init__(
        self,
        task: RolloutTask,
        workspace: Workspace,
        model: Model,
        settings: AgentSettings,
        on_message: Callable[[Message], None],
    ) -> None:
        self.workspace, self.model, self.settings, self.on_message = workspace, model, settings, on_message
        self.result = Episode([])
        self.started_s = time.monotonic()
        self.format_errors = 0
        self.add("system", settings.system_template)
        self.add("user", settings.instance_message(task.problem_statement))

    def add(self, role: str, content: str, **extra: object) -> None:
        message: Message = {
            "role": role,
            "content": encodable(content),
            "extra": {"timestamp": time.time(), **extra},
        }
        self.result.messages.append(message)
        self.on_message(message)

    def end(self, ending: Ending, error: str) -> None:
        self.result.ending, self.result.error = ending, error

    def left_s(self) -> float:
        """Return seconds until the rollout's limit; a pause of the gateway does not count."""
        used_s = time.monotonic() - self.started_s - self.result.paused_s
        return self.settings.rollout_timeout_s - used_s

    def run(self) -> None:
        while True:
            if self.result.turns >= self.settings.max_turns:
                return self.end(Ending.LIMIT, f"no submission within {self.settings.max_turns} turns")
            if self.left_s() <= 0:
                limit_s = self.settings.rollout_timeout_s
                return self.end(Ending.LIMIT, f"no submission within {limit_s:g} s")
            if self.turn():
                return None

    def turn(self) -> bool:
        """One reply and what follows from it; returns whether the conversation has ended."""
        reply = self.ask()
        action = parse_action(reply.content) if reply.is_text else NOT_TEXT
        self.add(
            "assistant",
            reply.content,
            actions=[{"command": action.command}] if isinstance(action, Action) else [],
            finish_reason=reply.finish_reason,
            usage={"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens},
        )
        if isinstance(action, FormatError):
            return self.reject(self.format_reason(action, reply))
        self.format_errors = 0
        if action.command.strip() == SUBMIT_COMMAND:
            return True
        decision = inspect(action.command)
        self.result.opaque += bool(decision.opaque)
        if decision.refusal is not None:
            return self.refuse(decision.refusal)
        limit_s = max(0.1, min(self.settings.command_timeout_s, self.left_s()))
        try:
            observation = self.workspace.execute(action.command, limit_s)
        except (UserError, OSError):
            self.result.workbench_failed = True
            raise
        text = observation_text(observation, self.settings.observation_chars)
        self.add("user", text, returncode=observation.returncode, timed_out=observation.timed_out)
        return _submits(observation)

    def ask(self) -> Reply:
        try:
            reply = self.model.reply(self.result.messages)
        except (ContextOverflowError, UserError, OSError):
            raise
        except Exception as error:
            raise ModelError(f"the policy cannot be asked: {type(error).__name__}: {error}") from error
        self.result.turns += 1
        self.result.prompt_tokens += reply.prompt_tokens
        self.result.completion_tokens += reply.completion_tokens
        self.result.max_prompt_tokens = max(self.result.max_prompt_tokens, reply.prompt_tokens)
        self.result.model_s += reply.wall_s - reply.paused_s
        self.result.paused_s += reply.paused_s
        return reply

    def format_reason(self, error: FormatError, reply: Reply) -> str:
        """Return why a reply holds no command; one that was cut says so first."""
        if reply.finish_reason == "length":
            return f"The reply was cut at its limit of {self.settings.max_tokens} tokens. {error.reason}"
        return error.reason

    def reject(self, reason: str) -> bool:
        """Answer a reply without a command."""
        self.format_errors += 1
        if self.format_errors >= self.settings.max_format_errors:
            self.end(Ending.FORMAT, reason)
            return True
        self.add("user", FORMAT_ERROR_TEMPLATE.format(reason=reason))
        return False

    def refuse(self, refusal: Refusal) -> bool:
        """Answer a command that is not run, in the form of an observation."""
        self.result.blocked[refusal.kind.value] += 1
        said = Observation(f"{refusal.sentence}\n".encode(), 1, False)
        text = observation_text(said, self.settings.observation_chars)
        blocked = {"kind": refusal.kind.value, "program": refusal.program}
        self.add("user", text, returncode=1, timed_out=False, blocked=blocked)
        if self.result.blocked.total() < self.settings.max_blocked:
            return False
        self.end(
            Ending.REFUSALS,
            f"{self.result.blocked.total()} refused commands, the last one for {refusal.program}",
        )
        return True


def _submits(observation: Observation) -> bool:
    first = observation.output.lstrip().split(b"\n", 1)[0].strip()
    return observation.returncode == 0 and first == SUBMIT_MARK.encode()
