"""Settings of an agent and of a recipe, whole: a test says what matters to it and takes the rest from here."""

from __future__ import annotations

from typing import Any

from lightning_smith.config.agent import AgentSettings

AGENT: dict[str, Any] = {
    "max_turns": 4,
    "max_tokens": 64,
    "observation_chars": 2000,
    "command_timeout_s": 10,
    "rollout_timeout_s": 120,
    "max_format_errors": 1,
    "grading_timeout_s": 15,
    "system_template": "Fix the bug.",
    "instance_template": "{problem_statement}",
    "max_blocked": 20,
    "grade": "all",
    "grade_unsubmitted": False,
    "audit_share": 1.0,
    "gradings": 2,
    "thinking": None,
}

RECIPE: dict[str, Any] = {
    "policy": "dense",
    "seed": 1,
    "checkpoints": [4, 7],
    "evaluate": [0, 4, 7],
    "tasks_per_step": 3,
    "rollouts_per_task": 4,
    "learning_rate": 1e-4,
    "clip_low": 0.2,
    "clip_high": 0.28,
    "loss": "per_rollout_mean",
    "tasks_per_update": None,
    "updates_per_step": 1,
    "rollout_correction": None,
    "router_replay": False,
    "async_rollouts": 0,
    "validate_every": None,
    "save_every": 2,
    "turn_penalty": None,
    "prompt_penalty": None,
    "verl": None,
}


def agent_settings(**changes: Any) -> AgentSettings:
    return AgentSettings.from_dict({**AGENT, **changes})
