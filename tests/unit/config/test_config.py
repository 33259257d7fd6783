"""What a broken configuration is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_smith.config.checks import check_schema
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
            "recipes.mine: 'policy' is a required property (a recipe of your own has every",
        ),
        ("recipes", "dense", 3, "recipes.dense: 3 is not of type 'object', 'null'"),
        ("probe", "task", 3, "probe.task: there is no such key (write tasks)"),
        (
            "probe",
            "temperature",
            "1e-1",
            "probe.temperature: '1e-1' is not of type 'number' (write 1.0e-1, since",
        ),
        ("dirs", "work", "/scratch/work", "dirs.work: '/scratch/work' is refused (write a path below the"),
        (
            "release",
            "revision",
            "main",
            "release.revision: 'main' is refused (write the 40 hexadecimal digits",
        ),
        ("images", "mirror", "https://a.b", "images.mirror: 'https://a.b' is refused (write host[:port]"),
        ("recipes", "Mine", None, "recipes: 'Mine' is refused (write a lower-case letter, then"),
        ("agent", "audit_share", float("nan"), "agent.audit_share: it is not a number"),
        ("agent", "gradings", 0, "agent.gradings: 0 is less than the minimum of 1"),
        (
            "evaluation",
            "temperature",
            float("inf"),
            "evaluation.temperature: inf is greater than the maximum",
        ),
        ("probe", True, 3, 'probe.True: YAML reads the key True as no text (write "True", in quotes)'),
        ("probe", "colour", "red", "probe.colour: there is no such key (config.yaml says what is legal)"),
    ],
)
def test_a_broken_key_is_named_with_what_to_write(section: str, key: Any, value: Any, said: str) -> None:
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    schema = yaml.safe_load((ROOT / "schemas/config.schema.yaml").read_text())
    check_schema(config, schema)
    config[section][key] = value
    with pytest.raises(UserError) as error:
        check_schema(config, schema)
    assert f"configuration key {said}" in str(error.value)
