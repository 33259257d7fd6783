"""Limits and wording of the agent: the section `agent` of the configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Self

from pydantic import Field
from pydantic.dataclasses import dataclass

from lightning_smith.config.check import checked
from lightning_smith.config.values import STRICT, Count, Fraction, Seconds, Switch, Text, Whole
from lightning_smith.contracts.task import WALL_FACTOR, Grade

MAX_TEST_RUNS = 16
"""Of one grading: the tests, two altered runs and one that confirms, the eight variants with right code
(`grading/assignments.py`), two runs that report values (`grading/valued.py`); where the tests could not be run, once
more, and without a patch."""


@dataclass(frozen=True, config=STRICT)
class AgentSettings:
    """Limits and wording of the agent; config.yaml says where each value comes from."""

    max_turns: Annotated[Count, Field(description="replies of the policy")]
    max_tokens: Annotated[Count, Field(description="tokens an answer")]
    observation_chars: Annotated[
        int, Whole(100), Field(description="characters of a command's output that the model sees")
    ]
    command_timeout_s: Annotated[Seconds, Field(description="seconds of one command")]
    rollout_timeout_s: Annotated[Seconds, Field(description="seconds of the agent's turns")]
    max_format_errors: Annotated[Count, Field(description="replies in a row without exactly one command")]
    grading_timeout_s: Annotated[Seconds, Field(description="processor seconds of one test run")]
    system_template: Annotated[str, Text(".", "write a text"), Field(description="the system's message")]
    instance_template: Annotated[
        str,
        Text(r"\{problem_statement\}", "write {problem_statement} where it is to stand"),
        Field(
            description="the first message; {problem_statement} stands for the task's, other braces for themselves"
        ),
    ]
    max_blocked: Annotated[Count, Field(description="refused commands in all")]
    grade: Annotated[Grade, Field(description="which of a task's tests decide")]
    grade_unsubmitted: Annotated[
        Switch,
        Field(description="whether a rollout that met a limit is graded by what it had changed until then"),
    ]
    audit_share: Annotated[
        Fraction, Field(description="of passing patches without a hit, how many altered runs test as well")
    ]
    gradings: Annotated[Count, Field(description="test runs at a time on a machine")]
    thinking: Annotated[
        Switch | None,
        Field(
            description="chat_template_kwargs.enable_thinking; null leaves it out, for endpoints that refuse it"
        ),
    ]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Raise UserError for a missing or unknown key, or a value that is not legal."""
        return checked(cls, values, "agent")

    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide what a rollout leaves and what comes of it."""
        return {name: value for name, value in asdict(self).items() if name != "gradings"}

    @property
    def request(self) -> dict[str, Any]:
        """Fields of each request to the policy that follow from the settings."""
        if self.thinking is None:
            return {}
        return {"chat_template_kwargs": {"enable_thinking": self.thinking}}

    @property
    def deadline_s(self) -> int:
        """When the controller ends a rollout: what agent and grading may take, and a minute for everything else."""
        return int(self.rollout_timeout_s + MAX_TEST_RUNS * WALL_FACTOR * self.grading_timeout_s + 60)

    def instance_message(self, problem_statement: str) -> str:
        """Return the first message of the user: the statement, whatever it holds, in its place in the template."""
        return re.sub(r"\{problem_statement\}", lambda _: problem_statement, self.instance_template)
