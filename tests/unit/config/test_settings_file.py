"""What a stage is told goes through a file, whose name follows from its content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from snakemake.utils import update_config

from lightning_smith.config.models import Config, read_config
from lightning_smith.config.settings_file import SettingsFiles, read_settings, settings_parser, write_settings
from lightning_smith.config.stages import (
    ProbeStage,
    TrainStage,
    grade_stage,
    predict_stage,
    probe_stage,
    references_stage,
    select_stage,
    train_stage,
    validate_stage,
)
from lightning_smith.core.errors import UserError

ROOT = Path(__file__).parents[3]


def config() -> Config:
    values = yaml.safe_load((ROOT / "config.yaml").read_text())
    update_config(values, yaml.safe_load((ROOT / "config/mini.yaml").read_text()))
    return read_config(values)


CONFIG = config()
DTYPES = {"dense": "float32", "moe": "bfloat16"}
STAGES = [
    probe_stage(CONFIG, None),
    train_stage(CONFIG, "moe", Path("data/images")),
    predict_stage(CONFIG, "dense", None, DTYPES),
    grade_stage(CONFIG),
    validate_stage(CONFIG),
    references_stage(CONFIG),
    select_stage(CONFIG),
]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
def test_what_is_written_is_read(stage: object, tmp_path: Path) -> None:
    path = write_settings(tmp_path, stage)
    args = settings_parser(None, type(stage)).parse_args(["--settings", path])
    assert read_settings(args, type(stage)) == stage
    assert write_settings(tmp_path, stage) == path and len(list(tmp_path.iterdir())) == 1


def test_the_name_changes_with_what_changes_a_result_alone(tmp_path: Path) -> None:
    stage = probe_stage(CONFIG, None)
    path = write_settings(tmp_path, stage)
    assert write_settings(tmp_path, replace(stage, agent=replace(stage.agent, gradings=7))) == path
    assert write_settings(tmp_path, replace(stage, agent=replace(stage.agent, max_turns=7))) != path
    args = settings_parser(None, ProbeStage).parse_args(["--settings", path, "--gradings", "7"])
    assert read_settings(args, ProbeStage).agent.gradings == 7


def test_the_command_line_is_laid_over_the_file(tmp_path: Path) -> None:
    path = write_settings(tmp_path, train_stage(CONFIG, "dense", None))
    flags = ["--settings", path, "--set", "recipe.learning_rate=2.0e-4", "--set", "references=null"]
    stage: TrainStage = read_settings(settings_parser(None, TrainStage).parse_args(flags), TrainStage)
    assert stage.recipe.learning_rate == 2e-4 and stage.references is None


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        (
            "recipe.learning_rte=1",
            r"json: configuration key recipe\.learning_rte: .* \(write learning_rate\)",
        ),
        ("recipe.seed=one", r"recipe\.seed: 'one' is not a whole number"),
        ("recipe.seed.x=1", r"--set recipe\.seed\.x: seed has no keys of its own"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path, assignment: str, sentence: str) -> None:
    path = write_settings(tmp_path, train_stage(CONFIG, "dense", None))
    args = settings_parser(None, TrainStage).parse_args(["--settings", path, "--set", assignment])
    with pytest.raises(UserError, match=sentence):
        read_settings(args, TrainStage)


@pytest.mark.parametrize("assignment", ["samples", "=3", "a=[", "a=: {"])
def test_what_is_no_assignment_is_refused(assignment: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings_parser(None, ProbeStage).parse_args(["--settings", "s", "--set", assignment])
    assert "argument --set: " in capsys.readouterr().err


def test_help_lists_every_setting_with_what_config_yaml_says(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings_parser("Probe.", ProbeStage).parse_args(["--help"])
    text = capsys.readouterr().out
    assert "  probe.samples: integer at least 2; rollouts a task (config.yaml: 4)\n" in text
    assert "  agent.max_turns: integer at least 1; replies of the policy (config.yaml: 100)\n" in text
    assert "  workspace: pod | docker | bwrap; backends.workspace\n" in text


def test_a_plan_writes_nothing_and_a_run_all(tmp_path: Path) -> None:
    files = SettingsFiles(tmp_path / "settings")
    first = files.path(STAGES[0])
    assert not (tmp_path / "settings").exists()
    files.write()
    second = files.path(STAGES[1])
    assert Path(first).is_file() and Path(second).is_file() and first != second


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    args = settings_parser(None, ProbeStage).parse_args(["--settings", str(tmp_path / "none.json")])
    with pytest.raises(UserError, match=r"none\.json does not exist"):
        read_settings(args, ProbeStage)
