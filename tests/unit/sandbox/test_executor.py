"""The executor as a plain process: what it does is the same in any container."""

from __future__ import annotations

import ast
import contextlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.sandbox import executor
from lightning_smith.sandbox.executor import Frames, HeadAndTail

SOURCE = Path(executor.__file__)
LIMITS = {"memory_mb": 4096, "file_mb": 64, "min_free_mb": 1, "min_free_files": 1}


class Client:
    """Speaks to an executor of its own."""

    def __init__(self, tree: Path, python: str = sys.executable) -> None:
        self.tree = tree
        self.process = subprocess.Popen(
            [python, "-I", "-S", str(SOURCE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.frames = Frames(self.process.stdout.fileno(), self.process.stdin.fileno())
        self.ready, _ = self.receive()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        received = self.frames.receive()
        assert received is not None
        return received

    def ask(self, op: str, data: bytes = b"", **request: Any) -> tuple[dict[str, Any], bytes]:
        self.frames.send({"op": op, **request}, data)
        return self.receive()

    def run(self, script: str, limit_s: float = 20, **request: Any) -> tuple[dict[str, Any], bytes]:
        wanted = {
            "keep_bytes": 1000,
            "cpu_s": None,
            "limits": LIMITS,
            "environment": {"PATH": "/usr/bin:/bin"},
        }
        wanted |= {"cwd": str(self.tree), "bash": self.ready["bash"], "limit_s": limit_s}
        return self.ask("run", script.encode(), **{**wanted, **request})

    def write(self, **files: tuple[int, bytes]) -> dict[str, Any]:
        listed = [(path, mode, len(data)) for path, (mode, data) in files.items()]
        return self.ask(
            "write", b"".join(data for _, data in files.values()), root=str(self.tree), files=listed
        )[0]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    (tmp_path / "tree").mkdir()
    client = Client(tmp_path / "tree")
    yield client
    client.close()


def alive(word: str) -> bool:
    done = subprocess.run(["pgrep", "-f", word], capture_output=True, text=True, check=False)
    return any(int(pid) != os.getpid() for pid in done.stdout.split())


def test_it_needs_no_python_newer_than_3_8() -> None:
    ast.parse(SOURCE.read_text(), feature_version=(3, 8))


def test_a_command_and_its_end(client: Client) -> None:
    answer, output = client.run("echo out; echo err >&2; pwd; exit 7")
    assert output == f"out\nerr\n{client.tree}\n".encode()
    assert (answer["returncode"], answer["limit"], answer["dropped_bytes"]) == (7, None, 0)
    assert client.run("kill -SEGV $$")[0]["returncode"] == 139
    seen = client.run("cat; env -u PWD -u SHLVL -u _ | sort")[1]
    assert seen == b"PATH=/usr/bin:/bin\n"
    answer, output = client.run("head -c 100000 /dev/zero", keep_bytes=10)
    assert output == bytes(20) and answer["dropped_bytes"] == 99_980


def test_nothing_outlives_a_command(client: Client) -> None:
    marks = [f"{os.getpid()}.{number}" for number in range(3)]
    answer, output = client.run(
        f"sleep 10{marks[0]} & (setsid sleep 20{marks[1]} >/dev/null 2>&1 &); "
        f"(trap '' TERM; setsid nohup bash -c 'sleep 30{marks[2]}; :' &) ; echo done"
    )
    assert (answer["returncode"], output) == (0, b"done\n")
    assert not any(alive(f"[1-3]0{mark}") for mark in marks)
    answer, output = client.run(f"printf partial; sleep 10{marks[0]}", limit_s=0.5)
    assert (answer["returncode"], answer["limit"], output) == (None, "time", b"partial")
    assert 0.5 <= answer["wall_s"] < 5 and not alive(f"[1]0{marks[0]}")


def test_limits(client: Client) -> None:
    assert client.run("while :; do :; done", cpu_s=1)[0]["returncode"] == 152
    assert client.run("sleep 9", limits={**LIMITS, "min_free_mb": 1 << 40})[0]["limit"] == "disk"
    assert client.run("sleep 9", limits={**LIMITS, "min_free_files": 1 << 60})[0]["limit"] == "files"
    assert (
        client.run("python3 -c 'bytearray(10**9)'", limits={**LIMITS, "memory_mb": 512})[0]["returncode"] == 1
    )
    client.run("head -c 3000000 /dev/zero > f", limits={**LIMITS, "file_mb": 1})
    assert (client.tree / "f").stat().st_size == 1 << 20


def test_files_are_written_over_anything_and_never_through_a_link(client: Client, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (client.tree / "link").symlink_to(outside)
    (client.tree / "file").write_text("a file")
    (client.tree / "folder").mkdir(mode=0o000)
    regular, program, link = stat.S_IFREG | 0o644, stat.S_IFREG | 0o755, stat.S_IFLNK | 0o777
    assert client.write(**{
        "link/a": (regular, b"1"), "file/b": (program, b"2"), "folder": (link, b"file/b"), "\udcff": (regular, b"3"),
    }) == {}  # fmt: skip
    assert not list(outside.iterdir()) and (client.tree / "link/a").read_bytes() == b"1"
    assert (client.tree / "file/b").stat().st_mode == program and (
        client.tree / "folder"
    ).read_bytes() == b"2"
    assert (client.tree / os.fsdecode(b"\xff")).read_bytes() == b"3"
    for path in ("/etc/x", "../x", "a/../../x", ""):
        assert "is no path below" in client.write(**{path: (regular, b"")})["error"]
    (client.tree / "deep/er").mkdir(parents=True)
    (client.tree / "deep/er/x").write_text("x")
    assert (
        client.ask("remove", root=str(client.tree), paths=["deep/er/x", "absent", "link"], prune=True)[0]
        == {}
    )
    assert not (client.tree / "deep").exists() and not (client.tree / "link").exists() and outside.exists()


def test_changes_since_a_tree_was_remembered(client: Client) -> None:
    root = str(client.tree)
    for name in ("same", "edited", "gone", "locked"):
        (client.tree / name).write_text(name)
    assert client.ask("remember", root=root)[0] == {"files": 4}
    stamps = dict(client.ask("stamps", root=root)[0]["stamps"])
    assert {path: stamp[1] for path, stamp in stamps.items()} == {
        "edited": 6,
        "gone": 4,
        "locked": 6,
        "same": 4,
    }
    client.run(
        "echo more >> edited; rm gone; mkdir d; echo new > d/new; ln -s same l; chmod 000 locked d; mkfifo p"
    )
    answer, _ = client.ask("changes", root=root)
    found = {
        path: (stamp[1], target, before is not None) for path, stamp, target, before in answer["changed"]
    }
    assert found == {
        "edited": (11, "", True), "d/new": (4, "", False), "l": (4, "same", False), "locked": (6, "", True),
        "p": (0, "", False),
    }  # fmt: skip
    assert answer["gone"] == ["gone"]
    answer, data = client.ask("read", root=root, paths=["edited", "d/new", "locked"], max_bytes=21)
    assert answer == {"sizes": [11, 4, 6]} and data == b"editedmore\nnew\nlocked"
    assert "more than the bytes" in client.ask("read", root=root, paths=["edited"], max_bytes=10)[0]["error"]
    for path in ("l", "p", "d"):
        assert "error" in client.ask("read", root=root, paths=[path], max_bytes=100)[0]
    assert client.run("echo alive")[1] == b"alive\n"


def test_more_changes_than_can_be_listed(client: Client) -> None:
    client.ask("remember", root=str(client.tree))
    make = (
        f"for _ in 1 2 3 4 5 6; do mkdir {'d' * 240} && cd {'d' * 240}; done\n"
        "mkdir {0..9}; for folder in {0..9}; do (cd $folder && seq -f '%0240g' 4000 | xargs touch); done"
    )
    assert client.run(make)[0]["returncode"] == 0
    assert client.ask("changes", root=str(client.tree)) == ({"too_many": True}, b"")
    client.run(f"rm -r {'d' * 240}; echo x > one")
    answer, _ = client.ask("changes", root=str(client.tree))
    assert [path for path, *_ in answer["changed"]] == ["one"] and answer["gone"] == []


def test_the_harness_goes_and_its_command_with_it(tmp_path: Path) -> None:
    client = Client(tmp_path)
    mark = f"77{os.getpid()}"
    client.frames.send({
        "op": "run", "cwd": str(tmp_path), "bash": "/bin/bash", "environment": {}, "keep_bytes": 1, "limits": LIMITS,
        "limit_s": 60,
    }, f"sleep {mark}".encode())  # fmt: skip
    deadline_s = time.monotonic() + 20
    while not alive(f"sleep {mark}") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    client.close()
    assert not alive(f"sleep {mark}") and time.monotonic() < deadline_s


def test_a_mistaken_request_is_answered(client: Client) -> None:
    assert "error" in client.ask("dance")[0] and "error" in client.ask("run")[0]
    assert client.run("echo alive")[1] == b"alive\n"


# --------------------------------------------------------------------------------------------------------- listening


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder for one socket; short, and nobody else's."""
    with tempfile.TemporaryDirectory(prefix="ls-") as folder:
        yield Path(folder)


def listening(path: Path) -> subprocess.Popen[bytes]:
    """An executor that has made its socket, or given up."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SOURCE), "--listen", str(path)], stderr=subprocess.PIPE
    )
    deadline_s = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_IMODE(path.stat().st_mode) == 0o600:
                break
        time.sleep(0.01)
    return process


def connected(path: Path) -> socket.socket:
    """A connection to an executor that is about to listen."""
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except ConnectionRefusedError:
            connection.close()


def test_it_listens_for_one_connection_whose_end_is_its_own(room: Path, tmp_path: Path) -> None:
    path = room / "socket"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))  # what an executor leaves that is killed while it waits
    process = listening(path)
    deadline_s = time.monotonic() + 20
    with connected(path) as connection:
        frames = Frames(connection.fileno(), connection.fileno())
        received = frames.receive()
        assert received is not None and received[0]["ready"] and not path.exists()
        with pytest.raises(FileNotFoundError):
            connected(path)
        run = {"op": "run", "cwd": str(tmp_path), "bash": "/bin/bash", "environment": {}, "limits": LIMITS}
        run |= {"keep_bytes": 1000, "limit_s": 60}
        frames.send(run, b"umask; for f in /proc/self/fd/*; do /bin/readlink $f; done")
        received = frames.receive()
        assert received is not None and b"socket" not in received[1]
        assert received[1].startswith(b"%04o\n" % current_umask())
        mark = f"78{os.getpid()}"
        frames.send(run, f"/bin/sleep {mark}".encode())
        while not alive(f"sleep {mark}") and time.monotonic() < deadline_s:
            time.sleep(0.02)
    assert process.wait(20) == 0 and not alive(f"sleep {mark}") and time.monotonic() < deadline_s


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("name", "mode", "sentence"),
    [
        ("x" * 100, 0o700, "is too long for a socket: the kernel takes 107 bytes"),
        ("open", 0o770, f"must belong to user {os.getuid()} alone (chown {os.getuid()}, chmod 700)"),
    ],
)
def test_it_does_not_listen_where_commands_could(room: Path, name: str, mode: int, sentence: str) -> None:
    (room / name).mkdir()
    (room / name).chmod(mode)
    process = listening(room / name / "socket")
    said = process.communicate(timeout=20)[1].decode()
    assert process.returncode == 2 and sentence in said and said.count("\n") == 1


@given(st.lists(st.binary(max_size=50)), st.integers(min_value=1, max_value=40))
def test_head_and_tail(parts: list[bytes], keep_bytes: int) -> None:
    kept, whole = HeadAndTail(keep_bytes), b"".join(parts)
    for part in parts:
        kept.add(part)
    if len(whole) <= 2 * keep_bytes:
        assert (kept.data(), kept.dropped_bytes) == (whole, 0)
    else:
        assert kept.data() == whole[:keep_bytes] + whole[-keep_bytes:]
        assert kept.dropped_bytes == len(whole) - 2 * keep_bytes
