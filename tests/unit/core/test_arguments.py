"""Numbers of command lines: out of range they are refused by name, in every script."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_smith.core.arguments import number, whole
from scripts.probe import probe

ROOT = Path(__file__).parents[3]
PLACES = sorted((ROOT / "scripts").rglob("*.py"))
PROBE = ["--settings", "s", "--tasks", "t", "--out", "o"]


def test_numbers_in_range_are_taken() -> None:
    assert whole(0)("0") == 0 and whole(1)("12") == 12
    assert number(0, 1)("1") == 1.0 and number(0, above=True)("1e-3") == 0.001


@pytest.mark.parametrize(
    ("convert", "text", "said"),
    [
        (whole(0), "-3", "-3 must be at least 0"),
        (whole(1), "0", "0 must be at least 1"),
        (whole(1), "2.5", "'2.5' is not a whole number"),
        (number(0, 1), "1.5", "1.5 must be at least 0 and at most 1"),
        (number(0, 1), "nan", "nan must be at least 0 and at most 1"),
        (number(0, 1), "half", "'half' is not a number"),
        (number(0, above=True), "0", "0 must be above 0"),
        (number(0, above=True), "inf", "inf must be above 0"),
    ],
)
def test_a_number_out_of_range_is_refused(convert: Callable[[str], float], text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        convert(text)
    assert str(refused.value) == said


@pytest.mark.parametrize("option", ["--gradings", "--retries", "--shards", "--max-rollouts"])
def test_a_script_names_the_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        probe.parse_args([*PROBE, option, "-1"])
    assert f"argument {option}: -1 must be at least" in capsys.readouterr().err


def test_every_number_of_every_script_has_a_range() -> None:
    """Counts of a release alone may be -1, which is any number."""
    without = {path.name for path in PLACES if re.search(r"type=(int|float)\b", path.read_text())}
    assert without == {"check_release.py"}
