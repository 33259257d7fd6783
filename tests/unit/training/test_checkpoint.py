"""Finding the newest whole checkpoint among damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_smith.training.checkpoint import FILES, fault, newest_whole, write_checkpoint

CONTENT = {"model.safetensors": b"weights" * 50, "optimizer.pt": b"moments" * 50, "state.json": b"{}"}


def write(root: Path, step: int) -> Path:
    def fill(folder: Path) -> None:
        for name, data in CONTENT.items():
            (folder / name).write_bytes(data)

    return write_checkpoint(root, step, fill)


def test_a_whole_checkpoint_is_found(tmp_path: Path):
    folder = write(tmp_path, 64)
    assert newest_whole(tmp_path) == newest_whole(tmp_path, 64)
    found = newest_whole(tmp_path)
    assert (found.step, found.path, found.skipped) == (64, folder, ())


def test_none_is_step_zero(tmp_path: Path):
    assert newest_whole(tmp_path).step == 0
    assert newest_whole(tmp_path / "absent").path is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / FILES).unlink(), f"lacks {FILES}"),
        (lambda folder: (folder / FILES).write_text('{"model.saf'), f"{FILES} is damaged"),
        (lambda folder: (folder / FILES).write_text("{}"), "does not list model.safetensors"),
        (lambda folder: (folder / "state.json").unlink(), "state.json is missing"),
        (lambda folder: (folder / "state.json").write_bytes(b""), "0 bytes instead of 2"),
        (lambda folder: (folder / "optimizer.pt").write_bytes(b"mo"), "2 bytes instead of 350"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"weighty" * 50), "another sha256"),
    ],
)
def test_a_damaged_newest_one_is_skipped_and_named(tmp_path: Path, damage, reason: str):
    whole, newest = write(tmp_path, 64), write(tmp_path, 80)
    damage(newest)
    found = newest_whole(tmp_path)
    assert (found.step, found.path) == (64, whole)
    assert [skipped.path for skipped in found.skipped] == [newest]
    assert reason in found.skipped[0].reason


def test_neither_numbers_nor_a_tracker_are_believed(tmp_path: Path):
    write(tmp_path, 64)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("112")
    (tmp_path / "global_step_112").mkdir()
    (tmp_path / "global_step_final").mkdir()
    (tmp_path / "global_step_200").write_text("a file")
    found = newest_whole(tmp_path)
    assert found.step == 64
    assert [skipped.path.name for skipped in found.skipped] == ["global_step_112"]


def test_later_checkpoints_do_not_count_for_an_earlier_step(tmp_path: Path):
    for step in (8, 10, 112):
        write(tmp_path, step)
    assert newest_whole(tmp_path, 14).step == 10


def test_a_killed_save_leaves_nothing_that_counts_and_is_replaced(tmp_path: Path):
    def killed(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, 8, killed)
    assert newest_whole(tmp_path).step == 0
    folder = write(tmp_path, 8)
    assert fault(folder) is None
    assert set(json.loads((folder / FILES).read_text())) == set(CONTENT)


def test_a_trainer_that_forgets_a_file_is_a_defect(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no optimizer\.pt"):
        write_checkpoint(tmp_path, 1, lambda folder: (folder / "model.safetensors").write_bytes(b"x"))
