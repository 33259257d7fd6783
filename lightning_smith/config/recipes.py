"""A training recipe: every number of one training run, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal, get_args

from lightning_smith.core.errors import UserError


@dataclass(frozen=True)
class LengthPenalty:
    """Nothing up to `start`, `most` from `end` on, a straight line between them."""

    start: int
    end: int
    most: float

    def __call__(self, length: int) -> float:
        share = (length - self.start) / (self.end - self.start)
        return self.most * min(max(share, 0.0), 1.0)


Loss = Literal["per_rollout_mean", "cispo_per_rollout_mean"]

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


@dataclass(frozen=True)
class RolloutCorrection:
    """Importance weights of the trainer's log-probabilities against the rollout engine's, `threshold` at most.

    With `bypass` the engine's log-probabilities are the old ones of the policy ratio as well.
    """

    level: Literal["token", "sequence"]
    threshold: float
    bypass: bool


@dataclass(frozen=True)
class Recipe:
    """Settings of one training run, as `recipes.<name>` of the configuration gives them.

    `checkpoints` are the steps at which segments end; the last one is the horizon. `clip_low` and `clip_high`
    bound the probability ratio at 1 - clip_low and 1 + clip_high. `turn_penalty` (turns) and `prompt_penalty`
    (tokens of the longest prompt) take from the rewards of long solutions, None nothing. An update takes the rows of
    `tasks_per_update` tasks' rollouts, None all of the step's. `verl` are settings of verl by its own names, which no
    other trainer has. The last four have no key in the published configuration: they are AdamW's and the gradient's
    settings of the miniature.
    """

    policy: str
    seed: int
    checkpoints: tuple[int, ...]
    evaluate: tuple[int, ...]
    tasks_per_step: int
    rollouts_per_task: int
    learning_rate: float
    clip_low: float
    clip_high: float
    loss: Loss
    router_replay: bool
    async_rollouts: int
    save_every: int
    tasks_per_update: int | None = None
    updates_per_step: int = 1
    rollout_correction: RolloutCorrection | None = None
    validate_every: int | None = None
    verl: Mapping[str, Any] | None = None
    turn_penalty: LengthPenalty | None = None
    prompt_penalty: LengthPenalty | None = None
    adam_beta1: float = 0.9
    adam_beta2: float = 0.99
    weight_decay: float = 0.0
    gradient_clip: float = 1.0

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
        """Whether the policy is scored on the validation tasks after `step`: every so often, and at checkpoints."""
        return self.validate_every is not None and (
            step % self.validate_every == 0 or step in self.checkpoints
        )

    def require_step(self, step: int) -> None:
        """Raise UserError if no segment ends at `step`."""
        if step not in self.checkpoints:
            raise UserError(f"step {step} is not one of the recipe's checkpoints {list(self.checkpoints)}")


def parse_recipe(name: str, settings: Mapping[str, Any]) -> Recipe:
    """Check a recipe's JSON object; a UserError names the first key that is unknown, missing or wrong."""
    known = {field.name: field for field in fields(Recipe)}
    for key in settings:
        if key not in known:
            raise UserError(f"recipe {name} has the unknown key {key!r} (known: {', '.join(known)})")
    values: dict[str, Any] = {}
    for key, field in known.items():
        if key in settings:
            values[key] = _convert(name, key, str(field.type), settings[key])
        elif field.default is MISSING:
            raise UserError(f"recipe {name} lacks the key {key!r}")
    recipe = Recipe(**values)
    _check(name, recipe)
    return recipe


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
    """The recipe's settings that decide what a step computes: all but `NEUTRAL`."""
    return {key: value for key, value in asdict(recipe).items() if key not in NEUTRAL}


def _convert(name: str, key: str, kind: str, value: Any) -> Any:
    """`value` as the field's type, without guessing: "8" is no number and 8.5 no count."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind.startswith("int") and whole and value >= 0:
        return value
    if kind.endswith("| None") and value is None:
        return None
    if kind == "float" and number:
        return float(value)
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "Loss" and value in get_args(Loss):
        return value
    if kind == "LengthPenalty | None":
        return _penalty(name, key, value)
    if kind == "RolloutCorrection | None":
        return _correction(name, key, value)
    if kind == "Mapping[str, Any] | None" and isinstance(value, Mapping):
        return dict(value)
    if kind.startswith("tuple") and isinstance(value, list | tuple):
        if all(isinstance(step, int) and step >= 0 for step in value):
            return tuple(value)
        kind = "a list of steps"
    wanted = " or ".join(get_args(Loss)) if kind == "Loss" else kind
    raise UserError(f"recipe {name}: {key}={value!r} is not {wanted}")


def _penalty(name: str, key: str, value: Any) -> LengthPenalty:
    known = {field.name: str(field.type) for field in fields(LengthPenalty)}
    if not isinstance(value, Mapping) or set(value) != set(known):
        raise UserError(f"recipe {name}: {key}={value!r} is neither null nor {{{', '.join(known)}}}")
    numbers = {part: _convert(name, f"{key}.{part}", kind, value[part]) for part, kind in known.items()}
    penalty = LengthPenalty(**numbers)
    if penalty.end <= penalty.start or not 0 < penalty.most < 0.5:
        raise UserError(
            f"recipe {name}: {key}={value!r} must have start < end and most between 0 and 0.5, so that a solution is "
            "worth more than none"
        )
    return penalty


def _correction(name: str, key: str, value: Any) -> RolloutCorrection:
    wanted = f"recipe {name}: {key}={value!r} is neither null nor {{level, threshold, bypass}}"
    if not isinstance(value, Mapping) or set(value) != {field.name for field in fields(RolloutCorrection)}:
        raise UserError(wanted)
    if value["level"] not in ("token", "sequence"):
        raise UserError(f"recipe {name}: {key}.level={value['level']!r} is not token or sequence")
    threshold = _convert(name, f"{key}.threshold", "float", value["threshold"])
    if threshold < 1:
        raise UserError(f"recipe {name}: {key}.threshold={threshold} must be at least 1")
    return RolloutCorrection(
        value["level"], threshold, _convert(name, f"{key}.bypass", "bool", value["bypass"])
    )


def _check(name: str, recipe: Recipe) -> None:
    rising = all(a < b for a, b in zip(recipe.checkpoints, recipe.checkpoints[1:], strict=False))
    if not recipe.checkpoints or recipe.checkpoints[0] < 1 or not rising:
        raise UserError(
            f"recipe {name}: checkpoints={list(recipe.checkpoints)} must be rising steps from 1 on"
        )
    least = {"tasks_per_step": 1, "rollouts_per_task": 2, "save_every": 1}
    least |= {"updates_per_step": 1, "tasks_per_update": 1, "validate_every": 1}
    for key, low in least.items():
        if (value := getattr(recipe, key)) is not None and value < low:
            raise UserError(f"recipe {name}: {key}={value} must be at least {low}")
    if recipe.updates_per_step > 1 and recipe.tasks_per_update is None:
        raise UserError(
            f"recipe {name}: updates_per_step={recipe.updates_per_step} needs tasks_per_update, the tasks whose rows "
            "make one update"
        )
    if (recipe.tasks_per_update or 1) > recipe.tasks_per_step:
        raise UserError(
            f"recipe {name}: tasks_per_update={recipe.tasks_per_update} is more than a step has "
            f"(tasks_per_step={recipe.tasks_per_step})"
        )
    for key in ("learning_rate", "clip_low", "clip_high", "gradient_clip"):
        if not getattr(recipe, key) > 0:
            raise UserError(f"recipe {name}: {key}={getattr(recipe, key)} must be above 0")
