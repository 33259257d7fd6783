"""Fetching shards: whole and with the right hash, or not at all."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from swe_smith_rows import load_script, make_row, write_shard

from lightning_smith.errors import UserError
from lightning_smith.files import sha256_file
from lightning_smith.tasks.columns import sha256_sums
from lightning_smith.tasks.download import FolderSource, HubSource, download_shard

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
    assert [path.name for path in out.parent.iterdir()] == [out.name]


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


def test_a_shard_of_another_shape_is_refused_before_it_counts(hub: Path, tmp_path: Path) -> None:
    (hub / NAME).write_bytes(b"not parquet")
    (hub / "SHA256SUMS").write_text(sha256_sums(hub, [NAME]))
    out = tmp_path / "raw" / "shard.parquet"
    with pytest.raises(UserError, match="is no readable parquet file"):
        fetch(hub, out)
    assert list(out.parent.iterdir()) == []


class HubServer:
    """Speaks what huggingface_hub asks of a hub for one data set: HEAD and GET of resolved files."""

    def __init__(self, folder: Path) -> None:
        self.announced = {name: (folder / name).read_bytes() for name in self._names(folder)}
        self.served = dict(self.announced)
        self.gets: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.answer(body=False)

            def do_GET(self) -> None:
                self.answer(body=True)

            def answer(self, body: bool) -> None:
                name = self.path.partition("/resolve/")[2].partition("/")[2]
                if name not in server.served:
                    self.send_response(404)
                    self.send_header("X-Error-Code", "EntryNotFound")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                data, digest = server.served[name], hashlib.sha256(server.announced[name]).hexdigest()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("ETag", f'"{digest}"')
                self.send_header("X-Linked-Etag", f'"{digest}"')
                self.send_header("X-Linked-Size", str(len(server.announced[name])))
                self.send_header("X-Repo-Commit", "e" * 40)
                self.end_headers()
                if body:
                    server.gets.append(name)
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @staticmethod
    def _names(folder: Path) -> list[str]:
        return [str(path.relative_to(folder)) for path in folder.rglob("*.parquet")]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    pytest.importorskip("huggingface_hub")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    running = HubServer(hub)
    yield running
    running.close()


@pytest.mark.parametrize("given", [True, False])
def test_the_real_client_and_a_hub_that_flips_one_bit(
    server: HubServer, hub: Path, tmp_path: Path, given
) -> None:
    source = HubSource("acme/release", "e" * 40, server.endpoint)
    right = sha256_file(hub / NAME)
    server.served[NAME] = flip_bit(server.announced[NAME])
    other = "data/train-00005-of-00011.parquet"
    outs = {name: tmp_path / "raw" / Path(name).name for name in (NAME, other)}
    download_shard(source, other, outs[other])
    with pytest.raises(UserError) as caught:
        download_shard(source, NAME, outs[NAME], right if given else None)
    message = str(caught.value)
    assert NAME in message and right in message and hashlib.sha256(server.served[NAME]).hexdigest() in message
    assert not outs[NAME].exists()
    server.served[NAME] = server.announced[NAME]
    server.gets.clear()
    for name, out in outs.items():
        download_shard(source, name, out)
        assert sha256_file(out) == sha256_file(hub / name)
    assert server.gets == [NAME]


def test_what_the_hub_refuses_is_one_sentence(server: HubServer, tmp_path: Path) -> None:
    source = HubSource("acme/release", "e" * 40, server.endpoint)
    out = tmp_path / "raw" / "none.parquet"
    for endpoint in (server.endpoint, "http://127.0.0.1:9"):
        source.endpoint = endpoint
        with pytest.raises(UserError, match=r"cannot fetch data/none\.parquet of acme/release@e") as caught:
            download_shard(source, "data/none.parquet", out)
        assert "\n" not in str(caught.value)


def test_a_folder_source_is_named_in_messages(hub: Path) -> None:
    assert FolderSource(hub).label == str(hub)
