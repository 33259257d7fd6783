"""Figures: the same data give the same bytes, and data that do not add up are refused."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json
from lightning_smith.funnel.ledger import FilterTotal
from lightning_smith.report.figures import (
    draw_funnel,
    draw_rewards,
    read_results,
    read_rewards,
    smoothing_window,
    trailing_mean,
)

FUNNEL = (
    "filter\tkept\tdropped\treason\nrelease\t640\t0\t\nstatement\t520\t120\tempty\nbranch\t505\t15\tabsent\n"
)
RESULTS = (
    "origin,model,recipe,step,rate,rate_low,rate_high\n"
    "measured,dense,dense,0,0.40,0.35,0.45\n"
    "measured,dense,dense,8,0.45,0.40,0.50\n"
    "published,Qwen3.5-9B,dense,0,0.418,,\n"
)


def write_data(folder: Path) -> list[str]:
    (folder / "funnel.tsv").write_text(FUNNEL)
    (folder / "main.csv").write_text(RESULTS)
    metrics = [{"step": step, "reward": 0.3 + 0.01 * step} for step in range(1, 23)]
    write_json(folder / "step_22.json", {"metrics": {"steps": [*metrics, {"step": 23, "reward": None}]}})
    return [
        *("--funnel", str(folder / "funnel.tsv"), "--results", str(folder / "main.csv")),
        *("--metrics", "dense", str(folder / "step_22.json")),
    ]


def test_every_figure_is_svg_and_reproducible(tmp_path: Path):
    """Two processes, because ids inside a figure must not depend on the hash seed or on what was drawn
    before."""
    arguments = write_data(tmp_path)
    script = Path(__file__).parents[3] / "scripts/report/draw_figures.py"
    drawn = []
    for run in ("1", "2"):
        out = tmp_path / run
        command = [sys.executable, str(script), *arguments, "--out", str(out)]
        subprocess.run(command, check=True, env={"PYTHONHASHSEED": run, "PATH": "/usr/bin:/bin"})
        drawn.append({path.name: path.read_bytes() for path in sorted(out.iterdir())})
    assert list(drawn[0]) == ["evaluation.svg", "funnel.svg", "reward.svg"]
    assert drawn[0] == drawn[1]
    for data in drawn[0].values():
        assert ElementTree.fromstring(data).tag == "{http://www.w3.org/2000/svg}svg"
        assert b"<dc:date>" not in data


def test_figures_follow_the_data():
    steps = [FilterTotal("release", 640, 0), FilterTotal("statement", 520, 120)]
    assert draw_funnel(steps) == draw_funnel(list(steps))
    assert draw_funnel(steps) != draw_funnel(
        [FilterTotal("release", 640, 0), FilterTotal("statement", 519, 121)]
    )


def test_rewards(tmp_path: Path):
    path = tmp_path / "step_3.json"
    steps = [{"step": 1, "reward": 0.5}, {"step": 2, "reward": None}, {"step": 3, "reward": 1}]
    write_json(path, {"metrics": {"steps": steps}})
    assert read_rewards(path) == [(1, 0.5), (3, 1.0)]
    assert trailing_mean([1.0, 0.0, 0.5, 1.0], 3) == pytest.approx([1.0, 0.5, 0.5, 0.5])
    assert [smoothing_window(steps) for steps in (6, 22, 176)] == [3, 3, 18]
    with pytest.raises(UserError, match="no training run has a step with a reward"):
        draw_rewards({"dense": []})


def test_results_without_a_measured_row_are_refused(tmp_path: Path):
    path = tmp_path / "main.csv"
    path.write_text("origin,model\npublished,x\n")
    with pytest.raises(UserError, match="no measured row"):
        read_results(path)
