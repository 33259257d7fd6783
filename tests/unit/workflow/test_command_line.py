"""What is refused before Snakemake reads a workflow, and values of --config as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.workflow.command_line import config_values, refuse_command_line


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("filters={validated: true}", {"filters": {"validated": True}}),
        ("probe={tasks: 3, temperature: 0.5}", {"probe": {"tasks": 3, "temperature": 0.5}}),
        ("recipes={dense: {learning_rate: 1e-4}}", {"recipes": {"dense": {"learning_rate": 1e-4}}}),
        ("recipes={dense: {learning_rate: 2.5E+2}}", {"recipes": {"dense": {"learning_rate": 250.0}}}),
        ("recipes={dense_async: null}", {"recipes": {"dense_async": None}}),
        ('images={agent_python: "3.12"}', {"images": {"agent_python": "3.12"}}),
        ("images={only: [a, b]}", {"images": {"only": ["a", "b"]}}),
        ("release={'rows': 7}", {"release": {"rows": 7}}),
        ("release={revision: 1e4e}", {"release": {"revision": "1e4e"}}),
        ("experiment='mine'", {"experiment": "mine"}),
        ("release=", {"release": None}),
    ],
)
def test_values_of_the_command_line_are_read_as_yaml(entry: str, value: Any) -> None:
    assert list(config_values([entry])) == [value]


def test_what_is_no_yaml_is_named() -> None:
    with pytest.raises(UserError, match=r"--config probe=\{tasks: \[1 is not YAML"):
        list(config_values(["probe={tasks: [1"]))


@pytest.mark.parametrize(
    ("config", "files", "said"),
    [
        (["probe.tasks=3"], [], "write --config 'probe={tasks: 3}'"),
        (["recipes.dense.seed=2"], [], "write --config 'recipes={dense: {seed: 2}}'"),
        (["filters={validated: true}", "probe"], [], "`uv run snakemake --config KEY=VALUE -- probe`"),
        ([], ["config/min.yaml"], "config/min.yaml does not exist"),
        ([], ["probe"], "`uv run snakemake --configfile FILE -- probe`"),
        ([], ["/"], "the configuration file / cannot be read (Is a directory)"),
        (["=3"], [], "--config =3 begins with no key"),
        (["a-b=3"], [], "--config a-b=3 begins with no key"),
    ],
)
def test_what_snakemake_answers_with_a_traceback_is_refused(
    config: list[str], files: list[str], said: str
) -> None:
    with pytest.raises(UserError) as error:
        refuse_command_line(config, map(Path, files), None)
    assert said in str(error.value)


def test_files_that_exist_and_nested_values_pass(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("probe: {tasks: 3}\n")
    (tmp_path / "Snakefile").touch()
    refuse_command_line(["probe={tasks: 3}"], [tmp_path / "x.yaml"], tmp_path)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--directory {tmp_path} is no checkout .*: leave --directory out"):
        refuse_command_line([], [], tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: 1\nb: [1\n", r"is not YAML: line 3, expected ',' or '\]'.*; correct it there"),
        (b"\xff\xfea", "is not YAML: .*; correct it there"),
        (b"a: \xff\n", "is not YAML: .*; correct it there"),
        (b"", "has no keys"),
        (b"- 1\n", "has no keys"),
    ],
    ids=["bracket", "UTF-16", "no text", "empty", "list"],
)
def test_a_configuration_file_that_is_none_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (file := tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(UserError, match=f"{file} {said}"):
        refuse_command_line([], [file], None)
