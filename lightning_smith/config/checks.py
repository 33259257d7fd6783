"""What the schema of the configuration cannot say: how its parts refer to each other."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lightning_smith.config.recipes import VERL_NAMES, parse_recipe, refuse_torch_lacks
from lightning_smith.core.errors import UserError


def active_recipes(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Recipes by name, without those that an overlay switched off with null."""
    return {name: recipe for name, recipe in config["recipes"].items() if recipe is not None}


def recipe_settings(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a recipe as its trainer reads it.

    verl gets the section `verl` with the recipe's own laid over it, another trainer neither.
    """
    recipe = {key: value for key, value in config["recipes"][name].items() if key != "verl"}
    if config["backends"]["trainer"] != "verl":
        return recipe
    return recipe | {"verl": {**(config["verl"] or {}), **(config["recipes"][name]["verl"] or {})}}


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
        if steps != sorted(steps):
            raise UserError(f"{where}.checkpoints={steps} must rise")
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
        parsed = parse_recipe(name, recipe_settings(config, name))
        if config["backends"]["trainer"] == "torch":
            refuse_torch_lacks(name, parsed)


def configured_recipe(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A recipe by its name; UserError if there is none."""
    recipes = active_recipes(config)
    if name not in recipes:
        raise UserError(f"there is no recipe {name!r}: the configuration has {', '.join(recipes)}")
    return recipes[name]


def step_before(config: dict[str, Any], name: str, step: int) -> int:
    """The checkpoint that a recipe's segment up to `step` starts from; 0 is the policy before training.

    Raises UserError for a recipe or a step that is not configured.
    """
    steps = configured_recipe(config, name)["checkpoints"]
    if step not in steps:
        raise UserError(f"recipe {name} has no checkpoint at step {step}: it has {steps}")
    return max((s for s in steps if s < step), default=0)


def check_schema(config: dict[str, Any], schema: dict[str, Any]) -> None:
    """Raise UserError with the key's path for the first place where `config` breaks the JSON schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    _refuse_foreign_values(config, ())
    error = best_match(Draft202012Validator(schema).iter_errors(config))
    if error is None:
        return
    path = [str(part) for part in error.absolute_path]
    said, legal = error.message, "config.yaml says what is legal"
    if error.validator == "additionalProperties":
        unknown = min(set(error.instance) - set(error.schema["properties"]))
        path, said = [*path, unknown], "there is no such key"
        legal = _did_you_mean(unknown, error.schema["properties"]) or legal
    elif error.validator == "required" and len(path) == 2 and path[0] == "recipes":
        known = (name for name, recipe in config["recipes"].items() if name != path[1] and recipe)
        legal = _did_you_mean(path[1], known)
        said = "there is no such recipe" if legal else said
        legal = legal or "a recipe of your own has every key that those of config.yaml have"
    elif error.validator == "pattern":
        said, legal = f"{error.instance!r} is refused", error.schema.get("description", legal)
    elif isinstance(error.instance, str) and _EXPONENT.fullmatch(error.instance):
        number = _EXPONENT.sub(r"\1.0e\2", error.instance)
        legal = f"write {number}, since YAML reads a number with an exponent only if it has a point"
    raise UserError(f"configuration key {'.'.join(path) or '(top level)'}: {said} ({legal})")


def _refuse_foreign_values(value: Any, path: tuple[str, ...]) -> None:
    """Raise UserError for what YAML has and JSON has not, so that no schema speaks of it: other keys than text, NaN."""
    if isinstance(value, float) and math.isnan(value):
        raise UserError(
            f"configuration key {'.'.join(path)}: it is not a number (config.yaml says what is legal)"
        )
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(
                    f"configuration key {'.'.join((*path, str(key)))}: YAML reads the key {key!r} as no text "
                    f'(write "{key}", in quotes)'
                )
            _refuse_foreign_values(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _refuse_foreign_values(inner, (*path, str(number)))


_EXPONENT = re.compile(r"([-+]?[0-9]+)[eE]([-+]?[0-9]+)")


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """`write <the closest known name>`; None if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"write {close[0]}" if close else None
