"""Fetching a pinned distribution from a package index, and unpacking it."""

from __future__ import annotations

import errno
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.miniature.tasks import sources
from lightning_smith.miniature.tasks.sources import fetch_sdist, index_url, unpack_sdist, without_credentials
from lightning_smith.miniature.tasks.table import Source


def sdist(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


DATA = sdist({"demo-1.0/demo.py": b"x = 1\n" * 1000, "demo-1.0/tests/test_demo.py": b"def test(): pass\n"})
SOURCE = Source(
    "demo",
    "1.0",
    "demo-1.0.tar.gz",
    hashlib.sha256(DATA).hexdigest(),
    "MIT",
    "train",
    "demo.py",
    ("tests/test_*.py",),
    ".",
)


class Index(ThreadingHTTPServer):
    """A package index on 127.0.0.1 that has demo 1.0; `body` and `length` are what a download gets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), IndexHandler)
        self.body, self.length, self.status, self.requests = DATA, len(DATA), 200, []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/simple/"
        self.environ = {"PIP_INDEX_URL": self.url}


class IndexHandler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path == "/simple/demo/":
            page = b'<html><body><a href="/files/demo-1.0.tar.gz">demo-1.0.tar.gz</a></body></html>'
            self.answer(200, page, len(page), "text/html")
        elif self.path.startswith("/files/"):
            self.answer(self.server.status, self.server.body, self.server.length, "application/gzip")
        else:
            self.answer(404, b"", 0, "text/plain")

    def answer(self, status: int, body: bytes, length: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    monkeypatch.setattr(sources, "RETRIES", 0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Index() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def test_fetch_then_use_what_is_there(index: Index, tmp_path: Path) -> None:
    out = tmp_path / "new" / "demo-1.0.tar.gz"
    assert fetch_sdist(SOURCE, out, index.environ)
    assert out.read_bytes() == DATA
    asked = len(index.requests)
    assert not fetch_sdist(SOURCE, out, index.environ)
    assert len(index.requests) == asked, "a file with the right hash needs no index"
    out.write_bytes(DATA[:100])
    assert fetch_sdist(SOURCE, out, index.environ), "a damaged file is fetched again"
    assert out.read_bytes() == DATA


def failure(source: Source, out: Path, environ: dict[str, str]) -> str:
    with pytest.raises(UserError) as caught:
        fetch_sdist(source, out, environ)
    assert list(out.parent.iterdir()) == [], "neither the file nor a part of it is left"
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_wrong_hash_names_the_file_and_both_hashes(index: Index, tmp_path: Path) -> None:
    index.body = b"y" + DATA[1:]
    message = failure(SOURCE, tmp_path / "demo.tar.gz", index.environ)
    assert "demo-1.0.tar.gz" in message
    assert SOURCE.sha256 in message
    assert hashlib.sha256(index.body).hexdigest() in message


def test_download_cut_short(index: Index, tmp_path: Path) -> None:
    index.body = DATA[:50]
    assert "demo-1.0.tar.gz" in (message := failure(SOURCE, tmp_path / "demo.tar.gz", index.environ))
    assert "cut short" in message


def test_file_not_found(index: Index, tmp_path: Path) -> None:
    index.status, index.body, index.length = 404, b"", 0
    assert "answers 404 for demo-1.0.tar.gz" in failure(SOURCE, tmp_path / "demo.tar.gz", index.environ)


def test_package_and_file_that_the_index_lacks(index: Index, tmp_path: Path) -> None:
    other = Source(**{**SOURCE.__dict__, "package": "nosuch"})
    assert f"{index.url} has no package nosuch" in failure(other, tmp_path / "x", index.environ)
    newer = Source(**{**SOURCE.__dict__, "filename": "demo-2.0.tar.gz"})
    assert f"{index.url} lists no file demo-2.0.tar.gz" in failure(newer, tmp_path / "x", index.environ)


def test_index_that_cannot_be_reached_hides_the_password(index: Index, tmp_path: Path) -> None:
    environ = {"UV_DEFAULT_INDEX": "http://me:secret@127.0.0.1:9/simple/"}
    message = failure(SOURCE, tmp_path / "demo.tar.gz", environ)
    assert "cannot reach the package index http://127.0.0.1:9/simple/" in message
    assert "secret" not in message
    assert SOURCE.sha256 in message, "says which file to put there by hand"


def test_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources, "_download", full)
    with pytest.raises(OSError, match="No space left") as caught:
        fetch_sdist(SOURCE, tmp_path / "demo.tar.gz", {})
    assert caught.value.filename == str(tmp_path / "demo.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_which_index_is_used(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://conf/simple\n")
    environ: dict[str, str] = {}
    assert index_url(environ, []) == "https://pypi.org/simple/"
    assert index_url(environ, [tmp_path / "absent", config]) == "https://conf/simple"
    environ["PIP_INDEX_URL"] = "https://pip/simple"
    assert index_url(environ, [config]) == "https://pip/simple"
    environ["UV_INDEX_URL"] = "https://uv/simple"
    assert index_url(environ, [config]) == "https://uv/simple"
    environ["UV_DEFAULT_INDEX"] = "corp=https://corp/simple?a=b"
    assert index_url(environ, [config]) == "https://corp/simple?a=b"
    environ["UV_DEFAULT_INDEX"] = "https://corp/simple?a=b"
    assert index_url(environ, [config]) == "https://corp/simple?a=b"


def test_pip_conf_of_the_user_is_found(tmp_path: Path) -> None:
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text("[install]\nindex-url=https://user/simple\n")
    assert index_url({"HOME": str(tmp_path)}) == "https://user/simple"
    assert index_url({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}) == "https://pypi.org/simple/"


def test_credentials_are_cut_from_urls() -> None:
    assert without_credentials("https://u:p@host:8/x?y=1") == "https://host:8/x?y=1"
    assert without_credentials("https://host/simple/") == "https://host/simple/"


def test_unpacked_tree_is_the_top_folder(tmp_path: Path) -> None:
    archive = tmp_path / "demo-1.0.tar.gz"
    archive.write_bytes(DATA)
    unpack_sdist(archive, tmp_path / "tree")
    assert (tmp_path / "tree" / "tests" / "test_demo.py").read_bytes() == b"def test(): pass\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-1.0.tar.gz", "tree"]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"demo-1.0/../../evil.py": b""}, "cannot be unpacked"),
        ({"a/x": b"", "b/y": b""}, "one top folder"),
    ],
)
def test_hostile_or_odd_archives_are_refused(tmp_path: Path, members: dict[str, bytes], said: str) -> None:
    archive = tmp_path / "inner" / "demo.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(sdist(members))
    with pytest.raises(UserError, match=said):
        unpack_sdist(archive, archive.parent / "tree")
    assert [path.name for path in archive.parent.iterdir()] == ["demo.tar.gz"]
    assert not (tmp_path / "evil.py").exists()


def test_damaged_and_absent_archives_are_named(tmp_path: Path) -> None:
    archive = tmp_path / "demo.tar.gz"
    with pytest.raises(UserError, match=r"demo\.tar\.gz does not exist"):
        unpack_sdist(archive, tmp_path / "tree")
    archive.write_bytes(DATA[: len(DATA) // 2])
    with pytest.raises(UserError, match=r"demo\.tar\.gz cannot be unpacked"):
        unpack_sdist(archive, tmp_path / "tree")
