"""A training recipe: every number of one training run, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from lightning_smith.config.check import checked
from lightning_smith.config.values import (
    STRICT,
    Count,
    Name,
    Number,
    Positive,
    Quantity,
    Seed,
    Switch,
    Text,
    Whole,
    refusal,
)
from lightning_smith.core.errors import UserError

Loss = Literal["per_rollout_mean", "cispo_per_rollout_mean"]

VerlName = Annotated[
    str,
    Text(
        r"^(algorithm|data|actor_rollout_ref|trainer|agentlightning)([.][a-z][a-z0-9_]*)+$",
        "write keys as verl's command line does, as in trainer.nnodes",
    ),
]
VerlSettings = dict[VerlName, str | int | float | bool | list[Any] | None]
"""Settings of verl by its own names."""

NEUTRAL = frozenset({"policy", "checkpoints", "evaluate", "save_every", "validate_every"})
"""Settings of which steps are kept, not of what a step computes: a change leaves checkpoints valid."""


VERL_NAMES: dict[str, tuple[str, ...]] = {
    "checkpoints": ("trainer.total_training_steps",),
    "tasks_per_step": ("data.train_batch_size",),
    "rollouts_per_task": ("actor_rollout_ref.rollout.n",),
    "learning_rate": ("actor_rollout_ref.actor.optim.lr",),
    "clip_low": ("actor_rollout_ref.actor.clip_ratio_low",),
    "clip_high": ("actor_rollout_ref.actor.clip_ratio_high",),
    "loss": ("actor_rollout_ref.actor.policy_loss.loss_mode",),
    "tasks_per_update": ("actor_rollout_ref.actor.ppo_mini_batch_size",),
    "updates_per_step": ("agentlightning.max_ppo_update_times",),
    "rollout_correction": (
        "algorithm.rollout_correction.rollout_is",
        "algorithm.rollout_correction.rollout_is_threshold",
        "algorithm.rollout_correction.bypass_mode",
    ),
    "router_replay": (
        "actor_rollout_ref.actor.megatron.router_replay.mode",
        "actor_rollout_ref.rollout.enable_rollout_routing_replay",
    ),
    "async_rollouts": (
        "agentlightning.async_rollout.enabled",
        "agentlightning.async_rollout.async_train_batch_size",
    ),
    "validate_every": ("trainer.test_freq",),
    "save_every": ("trainer.save_freq",),
    "policies.<name>.model": ("actor_rollout_ref.model.path",),
    "policies.<name>.max_model_len": ("actor_rollout_ref.rollout.max_model_len",),
    "agent.rollout_timeout_s": ("agentlightning.rollout_timeout_seconds",),
}
"""Keys of the configuration, of a recipe where no section is named, and what verl and Agent Lightning call them."""


@dataclass(frozen=True, config=STRICT)
class LengthPenalty:
    """Nothing up to `start`, `most` from `end` on, a straight line between them."""

    start: Quantity
    end: Count
    most: Annotated[float, Number(0, 0.5, above=True, below=True)]

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.end <= self.start:
            raise refusal(f"start={self.start} must be below end={self.end}")
        return self

    def __call__(self, length: int) -> float:
        share = (length - self.start) / (self.end - self.start)
        return self.most * min(max(share, 0.0), 1.0)


@dataclass(frozen=True, config=STRICT)
class RolloutCorrection:
    """Importance weights of the trainer's log-probabilities against the rollout engine's, `threshold` at most.

    With `bypass` the engine's log-probabilities are the old ones of the policy ratio as well.
    """

    level: Literal["token", "sequence"]
    threshold: Annotated[float, Number(1)]
    bypass: Switch


def _rising(steps: tuple[int, ...]) -> tuple[int, ...]:
    if not steps or any(a >= b for a, b in pairwise(steps)):
        raise refusal(f"{list(steps)} must be rising steps from 1 on")
    return steps


@dataclass(frozen=True, config=STRICT)
class Recipe:
    """Settings of one training run: `recipes.<name>` of the configuration.

    The last four have no key there: they are AdamW's and the gradient's settings of the miniature.
    """

    policy: Annotated[Name, Field(description="key under `policies`")]
    seed: Annotated[Seed, Field(description="of task order and rollouts")]
    checkpoints: Annotated[
        tuple[Count, ...],
        AfterValidator(_rising),
        Field(description="steps at which segments end; the last one ends the run"),
    ]
    evaluate: Annotated[
        tuple[Quantity, ...], Field(description="steps that are evaluated; 0 is the policy before training")
    ]
    tasks_per_step: Annotated[Count, Field(description="groups of a step")]
    rollouts_per_task: Annotated[int, Whole(2), Field(description="rollouts of a group")]
    learning_rate: Annotated[Positive, Field(description="constant")]
    clip_low: Annotated[Positive, Field(description="ratio clipped at 1 - clip_low")]
    clip_high: Annotated[Positive, Field(description="ratio clipped at 1 + clip_high")]
    loss: Annotated[Loss, Field(description="how token losses are put together")]
    router_replay: Annotated[Switch, Field(description="replay of the experts recorded at rollout (R3)")]
    async_rollouts: Annotated[
        Quantity, Field(description="rollout groups in flight beside the update; 0 = synchronous")
    ]
    save_every: Annotated[Count, Field(description="steps between live checkpoints")]
    tasks_per_update: Annotated[
        Count | None,
        Field(description="an update takes the rows of so many tasks' rollouts; null = all of a step's"),
    ]
    updates_per_step: Annotated[Count, Field(description="updates of a step at most")]
    rollout_correction: Annotated[
        RolloutCorrection | None, Field(description="importance weights; null = none")
    ]
    validate_every: Annotated[
        Count | None, Field(description="steps between scores on the validation tasks; null = never")
    ]
    verl: Annotated[
        VerlSettings | None, Field(description="what this recipe sets besides, by verl's own names")
    ]
    turn_penalty: Annotated[LengthPenalty | None, Field(description="of turns, on the reward of a solution")]
    prompt_penalty: Annotated[
        LengthPenalty | None,
        Field(description="of tokens of the longest prompt, on the reward of a solution"),
    ]
    adam_beta1: float = field(default=0.9, init=False)
    adam_beta2: float = field(default=0.99, init=False)
    weight_decay: float = field(default=0.0, init=False)
    gradient_clip: float = field(default=1.0, init=False)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        """Refuse what no key alone shows."""
        if self.updates_per_step > 1 and self.tasks_per_update is None:
            raise refusal(
                f"updates_per_step={self.updates_per_step} needs tasks_per_update, the tasks whose rows make one update"
            )
        if (self.tasks_per_update or 1) > self.tasks_per_step:
            raise refusal(
                f"tasks_per_update={self.tasks_per_update} is more than a step has "
                f"(tasks_per_step={self.tasks_per_step})"
            )
        return self

    @property
    def horizon(self) -> int:
        """The last step of the run."""
        return self.checkpoints[-1]

    @property
    def rollouts_per_step(self) -> int:
        """Rollouts that one step is computed from, if none is masked."""
        return self.tasks_per_step * self.rollouts_per_task

    def updates(self, rows: int) -> int:
        """Updates of a step with so many training rows: one for each whole `tasks_per_update`, one at least."""
        if self.tasks_per_update is None:
            return 1
        whole = rows // (self.tasks_per_update * self.rollouts_per_task)
        return max(1, min(self.updates_per_step, whole))

    def validates(self, step: int) -> bool:
        """Return whether the policy is scored on the validation tasks after `step`: every so often, and at
        checkpoints.
        """
        return self.validate_every is not None and (
            step % self.validate_every == 0 or step in self.checkpoints
        )

    def require_step(self, step: int) -> None:
        """Raise UserError if no segment ends at `step`."""
        if step not in self.checkpoints:
            raise UserError(f"step {step} is not one of the recipe's checkpoints {list(self.checkpoints)}")


def parse_recipe(name: str, settings: Mapping[str, Any]) -> Recipe:
    """Return a recipe from its JSON object. Raise UserError for the first key that is unknown, missing or wrong."""
    return checked(Recipe, settings, f"recipes.{name}")


def refuse_torch_lacks(name: str, recipe: Recipe) -> None:
    """Raise UserError for what the miniature's trainer (`backends.trainer: torch`) does not do."""
    if recipe.async_rollouts:
        raise UserError(
            f"recipe {name}: async_rollouts={recipe.async_rollouts}, and the miniature trains synchronously: set it "
            "to 0"
        )
    if recipe.rollout_correction:
        raise UserError(
            f"recipe {name}: rollout_correction weighs the trainer's log-probabilities against the engine's, and the "
            "miniature takes the engine's for the old ones: set it to null"
        )


def deciding(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe's settings that decide what a step computes: all but `NEUTRAL`."""
    return {key: value for key, value in asdict(recipe).items() if key not in NEUTRAL}
