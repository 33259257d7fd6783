"""What a broken configuration is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from snakemake.utils import update_config

from lightning_smith.config.models import read_config
from lightning_smith.config.schema import schema_text
from lightning_smith.core.errors import UserError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("recipes", "densse", {"seed": 2}, "recipes.densse: there is no such recipe (write dense)"),
        (
            "recipes",
            "mine",
            {"seed": 2},
            "recipes.mine.policy: it is missing (every key of config.yaml must be there)",
        ),
        ("recipes", "dense", 3, "recipes.dense: 3 is no mapping of keys to values"),
        ("probe", "task", 3, "probe.task: there is no such key (write tasks)"),
        (
            "probe",
            "temperature",
            "1e-1",
            "probe.temperature: '1e-1' is not a number (write 1.0e-1, since",
        ),
        ("dirs", "work", "/scratch/work", "dirs.work: '/scratch/work' is refused (write a path below the"),
        (
            "release",
            "revision",
            "main",
            "release.revision: 'main' is refused (write the 40 hexadecimal digits",
        ),
        ("images", "mirror", "https://a.b", "images.mirror: 'https://a.b' is refused (write host[:port]"),
        ("recipes", "Mine", None, "recipes.Mine: 'Mine' is refused (write a lower-case letter, then"),
        ("agent", "audit_share", float("nan"), "agent.audit_share: it is not a number"),
        ("agent", "gradings", 0, "agent.gradings: 0 must be at least 1"),
        (
            "evaluation",
            "temperature",
            float("inf"),
            "evaluation.temperature: it is infinite",
        ),
        ("probe", True, 3, 'probe.True: YAML reads the key True as no text (write "True", in quotes)'),
        ("probe", "colour", "red", "probe.colour: there is no such key (config.yaml says what is legal)"),
    ],
)
def test_a_broken_key_is_named_with_what_to_write(section: str, key: Any, value: Any, said: str) -> None:
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    read_config(config)
    config[section][key] = value
    with pytest.raises(UserError) as error:
        read_config(config)
    assert f"configuration key {said}" in str(error.value)


def test_every_experiment_is_legal() -> None:
    for path in sorted((ROOT / "config").glob("*.yaml")):
        config = yaml.safe_load((ROOT / "config.yaml").read_text())
        for overlay in dict.fromkeys((ROOT / "config/mini.yaml", path)):
            update_config(config, yaml.safe_load(overlay.read_text()))
        assert read_config(config).experiment == path.stem


def test_the_schema_for_editors_is_that_of_the_models() -> None:
    text = (ROOT / "schemas/config.schema.yaml").read_text()
    assert text == schema_text(), (
        "run `uv run python -m lightning_smith.config.schema > schemas/config.schema.yaml`"
    )
    validator = jsonschema.Draft202012Validator(yaml.safe_load(text))
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    validator.validate(config)
    config["probe"]["samples"] = 1
    assert not validator.is_valid(config)
