"""What no key of the configuration shows alone: how its parts refer to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning_smith.config.recipes import VERL_NAMES, parse_recipe, refuse_torch_lacks
from lightning_smith.core.errors import UserError


def active_recipes(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Recipes by name, without those that an overlay switched off with null."""
    return {name: recipe for name, recipe in config["recipes"].items() if recipe is not None}


def check_references(config: dict[str, Any]) -> None:
    """Raise UserError, naming the key, where a part of the configuration refers to something that is not there."""
    if config["release"]["folder"] and config["backends"]["hub"] != "folder":
        raise UserError(
            f"config key release.folder={config['release']['folder']!r} is read with backends.hub=folder only: set that"
        )
    policies = config["policies"]
    if config["probe"]["policy"] not in policies:
        raise UserError(
            f"config key probe.policy={config['probe']['policy']!r} is none of {', '.join(policies)}"
        )
    for name, policy in policies.items():
        if policy["revision"] and Path(policy["model"]).is_dir():
            raise UserError(
                f"config key policies.{name}.revision is a commit of a Hugging Face id, and {policy['model']} is a "
                "folder: set it to null"
            )
    for name, recipe in active_recipes(config).items():
        where = f"config key recipes.{name}"
        if recipe["policy"] not in policies:
            raise UserError(f"{where}.policy={recipe['policy']!r} is none of {', '.join(policies)}")
        steps = recipe["checkpoints"]
        if unknown := sorted(set(recipe["evaluate"]) - {0, *steps}):
            raise UserError(
                f"{where}.evaluate names step {unknown[0]}, which is neither 0 nor one of {steps}"
            )
        if late := [step for step in steps if step % recipe["save_every"]]:
            raise UserError(
                f"{where}.save_every={recipe['save_every']} does not divide checkpoint {late[0]}: "
                "a live checkpoint would be missing at that step"
            )
        if recipe["validate_every"] and not config["selection"]["validation_tasks"]:
            raise UserError(
                f"{where}.validate_every={recipe['validate_every']}, and selection.validation_tasks=0 holds no task "
                "aside for it: raise that, or set validate_every to null"
            )
        for section, settings in (("verl", config["verl"]), (f"{where}.verl", recipe["verl"])):
            for key in settings or {}:
                if named := next((ours for ours, verl in VERL_NAMES.items() if key in verl), None):
                    raise UserError(
                        f"{section} sets {key}, for which the configuration has the key {named}: set that"
                    )
        if recipe["router_replay"] and policies[recipe["policy"]]["kind"] != "moe":
            raise UserError(f"{where}.router_replay needs a policy of kind moe, not {recipe['policy']}")
        compared = [other for other in active_recipes(config).values() if other["policy"] == recipe["policy"]]
        if recipe["evaluate"] and not any(0 in other["evaluate"] for other in compared):
            raise UserError(
                f"{where}.evaluate={recipe['evaluate']} has nothing to compare with: add 0, policy {recipe['policy']} "
                "before training"
            )
        if config["backends"]["trainer"] == "torch":
            refuse_torch_lacks(name, parse_recipe(name, recipe))


def configured_recipe(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a recipe by its name. Raise UserError if there is none."""
    recipes = active_recipes(config)
    if name not in recipes:
        raise UserError(f"there is no recipe {name!r}: the configuration has {', '.join(recipes)}")
    return recipes[name]


def step_before(config: dict[str, Any], name: str, step: int) -> int:
    """Return the checkpoint that a recipe's segment up to `step` starts from; 0 is the policy before training.

    Raise UserError for a recipe or a step that is not configured.
    """
    steps = configured_recipe(config, name)["checkpoints"]
    if step not in steps:
        raise UserError(f"recipe {name} has no checkpoint at step {step}: it has {steps}")
    return max((s for s in steps if s < step), default=0)
