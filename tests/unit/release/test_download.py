"""Fetching shards: whole and with the right hash, or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from swe_smith_rows import load_script, make_row, write_shard

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file
from lightning_smith.release.columns import sha256_sums
from lightning_smith.release.download import FolderSource

NAME = "data/train-00004-of-00011.parquet"


def flip_bit(data: bytes) -> bytes:
    """One bit in the middle: a data page, so the parquet footer still reads."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A hub's folder with two shards and their sums."""
    root = tmp_path / "hu b é"
    names = [NAME, "data/train-00005-of-00011.parquet"]
    for number, name in enumerate(names):
        write_shard(root / name, [make_row(1000 * number + i) for i in range(300)])
    (root / "SHA256SUMS").write_text(sha256_sums(root, names))
    return root


def fetch(hub: Path, out: Path, *flags: str) -> None:
    common = ["--source", "folder", "--location", str(hub), "--revision", "none", "--file", NAME]
    load_script("download_shard").main([*common, "--out", str(out), *flags])


def test_a_whole_shard_arrives_and_is_not_fetched_twice(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "raw" / "train-00004-of-00011.parquet"
    fetch(hub, out)
    assert out.read_bytes() == (hub / NAME).read_bytes()
    before = out.stat()
    fetch(hub, out)
    assert out.stat().st_ino == before.st_ino
    assert "already there, whole" in capsys.readouterr().out
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name, f"{out.name}.json"]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "damage", [flip_bit, lambda data: data[:-1], lambda data: data + b"\0", lambda _: b""]
)
def test_altered_and_truncated_shards_are_refused_with_both_hashes(
    hub: Path, tmp_path: Path, damage, given
) -> None:
    right = sha256_file(hub / NAME)
    whole = (hub / NAME).read_bytes()
    wrong = damage(whole)
    (hub / NAME).write_bytes(wrong)
    out = tmp_path / "raw" / "shard.parquet"
    flags = ["--sha256", right] if given else []
    with pytest.raises(UserError) as caught:
        fetch(hub, out, *flags)
    message = str(caught.value)
    assert NAME in message and right in message and hashlib.sha256(wrong).hexdigest() in message
    assert "\n" not in message
    assert list(out.parent.iterdir()) == []
    (hub / NAME).write_bytes(whole)
    fetch(hub, out, *flags)
    assert sha256_file(out) == right


def test_a_shard_that_went_bad_on_the_disk_is_fetched_again(hub: Path, tmp_path: Path) -> None:
    out = tmp_path / "shard.parquet"
    fetch(hub, out)
    out.write_bytes(flip_bit(out.read_bytes()))
    fetch(hub, out)
    assert sha256_file(out) == sha256_file(hub / NAME)


def test_missing_files_and_hashes_are_told(hub: Path, tmp_path: Path) -> None:
    out = tmp_path / "raw" / "shard.parquet"
    data = (hub / NAME).read_bytes()
    (hub / NAME).unlink()
    with pytest.raises(UserError, match="has no data/train-00004"):
        fetch(hub, out)
    assert list(out.parent.iterdir()) == []
    (hub / NAME).write_bytes(data)
    with pytest.raises(UserError, match="is not 64 lower-case hexadecimal digits"):
        fetch(hub, out, "--sha256", "12")
    (hub / "SHA256SUMS").write_text("")
    with pytest.raises(UserError, match="announces no sha256 of data/train-00004"):
        fetch(hub, out)
    (hub / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match="SHA256SUMS does not exist"):
        fetch(hub, out)
    with pytest.raises(UserError, match="needs --revision"):
        load_script("download_shard").main(
            ["--source", "hub", "--location", "a/b", "--file", NAME, "--out", str(out)]
        )


@pytest.mark.parametrize("line", ["{sum} *{name}", "{sum}  ./{name}", "{sum}  {name}\r"])
def test_sums_as_their_program_writes_them_elsewhere(hub: Path, tmp_path: Path, line: str) -> None:
    right = sha256_file(hub / NAME).upper()
    (hub / "SHA256SUMS").write_text(line.format(sum=right, name=NAME) + "\n", newline="")
    out = tmp_path / "raw" / "shard.parquet"
    fetch(hub, out)
    assert sha256_file(out) == right.lower()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"SHA256 (x) = 12\n", None])
def test_sums_that_cannot_be_read_say_how_they_are_written(
    hub: Path, tmp_path: Path, content: bytes | None
) -> None:
    (hub / "SHA256SUMS").unlink()
    if content is None:
        (hub / "SHA256SUMS").mkdir()
    else:
        (hub / "SHA256SUMS").write_bytes(content)
    with pytest.raises(
        UserError, match=r"SHA256SUMS .*: write it \(cd '.*hu b é' && sha256sum data/\*\.parquet > "
    ):
        fetch(hub, tmp_path / "raw" / "shard.parquet")


def test_a_shard_of_another_shape_is_refused_before_it_counts(hub: Path, tmp_path: Path) -> None:
    (hub / NAME).write_bytes(b"not parquet")
    (hub / "SHA256SUMS").write_text(sha256_sums(hub, [NAME]))
    out = tmp_path / "raw" / "shard.parquet"
    with pytest.raises(UserError, match="is no readable parquet file"):
        fetch(hub, out)
    assert list(out.parent.iterdir()) == []


def test_a_folder_source_is_named_in_messages(hub: Path) -> None:
    assert FolderSource(hub).label == str(hub)
