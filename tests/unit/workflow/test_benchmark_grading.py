"""The benchmark of grading: its data fit the tasks, and its figures are computed as it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def grading() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_grading", ROOT / "benchmarks/grading.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_times_are_those_printed_last(grading: ModuleType) -> None:
    log = b"9m9.0s 9m9.0s\n9m9.0s 9m9.0s\n0m0.001s 0m0.003s\n1m2.500s 0m0.250s\n>>>>> Test Exit Code: 0\n"
    assert grading.cpu_s(log) == pytest.approx(62.754)


def test_a_patch_costs_what_its_audit_costs_as_often_as_it_is_audited(grading: ModuleType) -> None:
    run, own, once = grading.Spent(2, 4), grading.Spent(3, 4), grading.Spent(1, 8)
    costs = [grading.Cost(run, own, once, 0.05), grading.Cost(run, own, once, 1.0)]
    figures = grading.ratios(costs)
    assert figures["extra_time_full"] == pytest.approx(2.0)
    assert figures["extra_time"] == pytest.approx((0.05 * 2.0 + 2.0) / 2)
    assert figures["once"] == pytest.approx(0.5)
    assert figures["extra_time_full_wall"] == pytest.approx(3.0)
    assert figures["run_wall_s"] == pytest.approx(4.0)


def test_a_store_makes_each_run_once_and_knows_what_was_asked(grading: ModuleType) -> None:
    class Run:
        log = b"0m0.0s 0m0.0s\n0m1.0s 0m1.0s\n"

    store = grading.TimedRuns()
    runs = [store.run("a", Run), store.run("b", Run), store.run("a", Run)]
    assert runs[0] is runs[2] is not runs[1]
    assert store.asked == ["a", "b", "a"]
    assert store.took({"a", "b"}).cpu == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("path", "pythonpath", "name"),
    [
        ("src/isodate/isotime.py", "src", "isodate.isotime"),
        ("parse/__init__.py", ".", "parse"),
        ("xmltodict.py", ".", "xmltodict"),
    ],
)
def test_a_module_has_the_name_that_it_is_imported_by(
    grading: ModuleType, path: str, pythonpath: str, name: str
) -> None:
    assert grading.module_name(path, pythonpath) == name


def test_forgers_are_modules_with_a_docstring_that_is_left_out(grading: ModuleType) -> None:
    for path in sorted(grading.FORGERS.glob("*.py")):
        code = path.read_bytes()
        assert code.startswith(b'"""'), path
        compile(code.replace(b"MODULE", b"module"), path, "exec")
    assert b'"""' not in grading.load_forgers(["every_report"])["every_report"]


def test_honest_patches_are_of_tasks_and_change_no_more_than_a_repair_may(grading: ModuleType) -> None:
    tasks = {task.instance_id: task for task in grading.all_tasks()}
    for name, paths in grading.honest_patches().items():
        for path in paths:
            assert name in tasks, path
            assert path.read_bytes().startswith(b"diff --git "), path


def test_tasks_come_of_all_packages_in_turn(grading: ModuleType) -> None:
    assert len({task.package for task in grading.sample(22)}) == 22
