"""Folders of logs: which settings share one, and what is said where they do not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json
from lightning_smith.core.work_folder import differences, require_rows, settings_folder

FIRST = {"temperature": 1.0, "agent": {"max_turns": 4, "grade": "all"}, "recipe": {"checkpoints": (8, 14)}}


def changed(**changes: Any) -> dict[str, Any]:
    return {**FIRST, **changes}


def test_equal_settings_share_a_folder_that_says_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = settings_folder(tmp_path, FIRST, stage="probe")
    assert (
        folder.parent == tmp_path
        and settings_folder(tmp_path, dict(reversed(FIRST.items())), stage="x") == folder
    )
    assert read_json(folder / "settings.json") == {**FIRST, "recipe": {"checkpoints": [8, 14]}}
    assert capsys.readouterr().err == "", "nothing to tell of the first settings"


def test_other_settings_get_another_folder_and_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = settings_folder(tmp_path, FIRST, stage="probe")
    os.utime(first / "settings.json", (1, 1))
    second = settings_folder(tmp_path, changed(agent={"max_turns": 2, "grade": "all"}), stage="probe")
    assert capsys.readouterr().err == (
        f"[probe] agent.max_turns is 2 instead of 4: what {first} holds does not count, new records go to {second}\n"
    )
    third = settings_folder(tmp_path, changed(temperature=0.2), stage="probe")
    told = capsys.readouterr().err
    assert "temperature is 0.2 instead of 1.0, agent.max_turns is 4 instead of 2: what " in told
    assert str(second) in told, "it is compared with the last in use"
    assert len({first, second, third}) == 3
    assert settings_folder(tmp_path, FIRST, stage="probe") == first
    assert capsys.readouterr().err == "", "back again, its records count"
    settings_folder(tmp_path, changed(temperature=0.3), stage="probe")
    assert f"temperature is 0.3 instead of 1.0: what {first} holds" in capsys.readouterr().err


def test_folders_of_other_labels_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings_folder(tmp_path, FIRST, stage="grade", label="dense-step-8-sample-0.")
    settings_folder(tmp_path, changed(temperature=0.2), stage="grade", label="dense-step-8-sample-1.")
    (tmp_path / "logs").mkdir()
    settings_folder(tmp_path, FIRST, stage="grade")
    assert capsys.readouterr().err == ""


def test_differences_are_short_and_tell_null_from_absent() -> None:
    assert differences({"a": None}, {}) == "a is absent instead of null"
    assert differences({"text": "x" * 300}, {"text": "y"}) == (
        f'text is "y" instead of "{"x" * 59}… (302 characters)'
    )


def test_a_set_of_rows_may_grow_but_no_row_may_change(tmp_path: Path) -> None:
    require_rows(tmp_path, {"a": "1", "b": "2"})
    require_rows(tmp_path, {"a": "1"})
    require_rows(tmp_path, {"c": "3", "a": "1"})
    with pytest.raises(UserError, match=r"holds rollouts of b as another row .* move that folder away"):
        require_rows(tmp_path, {"a": "1", "b": "4"})
