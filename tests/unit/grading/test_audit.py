"""Which passing patches are tested by mixed runs."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from lightning_smith.grading.audit import Audit

KEYS = [f"{number:064x}" for number in range(2000)]


def test_hits_are_always_audited(tmp_path: Path) -> None:
    assert Audit(tmp_path, 0).due(KEYS[0], ("a.py:1 import gc",))
    assert not any(Audit(tmp_path, 0).due(key, ()) for key in KEYS)
    assert all(Audit(tmp_path, 1).due(key, ()) for key in KEYS)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_share_of_the_others_is(tmp_path: Path, share: float) -> None:
    drawn = sum(Audit(tmp_path, share).due(key, ()) for key in KEYS)
    # Five standard deviations of a binomial distribution.
    assert abs(drawn - share * len(KEYS)) < 5 * (len(KEYS) * share * (1 - share)) ** 0.5


def test_a_patch_is_drawn_once_and_by_a_secret(tmp_path: Path) -> None:
    drawn = [Audit(tmp_path / "a", 0.5).due(key, ()) for key in KEYS]
    assert drawn == [Audit(tmp_path / "a", 0.5).due(key, ()) for key in KEYS]
    assert drawn != [Audit(tmp_path / "b", 0.5).due(key, ()) for key in KEYS]


def test_all_are_after_a_forgery(tmp_path: Path) -> None:
    audit, other = Audit(tmp_path, 0), Audit(tmp_path, 0)
    audit.found()
    assert other.raised and other.due(KEYS[0], ())


def _draw(folder: Path) -> list[bool]:
    return [Audit(folder, 0.5).due(key, ()) for key in KEYS[:50]]


def test_processes_that_start_together_share_the_secret(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        drawn = pool.map(_draw, [tmp_path / "audit"] * 16)
    assert all(one == drawn[0] for one in drawn)
    assert [path.name for path in (tmp_path / "audit").iterdir()] == ["secret"]
