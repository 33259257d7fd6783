"""The real client against a hub with faults: each is one sentence or a retry, and what had arrived is not lost."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest
from hub_server import COMMIT, Fault, HubServer
from swe_smith_rows import make_row, write_shard

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, sha256_file
from lightning_smith.core.process import free_port
from lightning_smith.release import download
from lightning_smith.release.pins import HEADER, read_table

ROOT = Path(__file__).parents[3]
NAME, OTHER, BIG = (f"data/train-{shard:05d}-of-00011.parquet" for shard in (4, 5, 6))
MB = 1 << 20
KEPT_BYTES = 10 * MB
"""The client writes what it receives in pieces of this size."""
SOURCE = f"acme/release@{COMMIT}"
AGAIN = {"Retry-After": "0"}
Run = Callable[..., subprocess.CompletedProcess[str]]


def text_without_repeats(number: int) -> str:
    return random.Random(number).randbytes(1500).hex()


def flip_bit(data: bytes) -> bytes:
    """One bit in the middle: a data page, so the parquet footer still reads."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of two small shards and one of 25 MB."""
    root = tmp_path_factory.mktemp("hub")
    large = [
        make_row(2000 + i, problem_statement=random.Random(i).randbytes(600_000).hex()) for i in range(40)
    ]
    write_shard(root / BIG, large, compression="none", use_dictionary=False)
    for shard, name in enumerate((NAME, OTHER)):
        rows = [make_row(1000 * shard + i, problem_statement=text_without_repeats(i)) for i in range(300)]
        write_shard(root / name, rows)
    return root


@pytest.fixture
def server(folder: Path) -> Iterator[HubServer]:
    running = HubServer(folder)
    yield running
    running.close()


@pytest.fixture
def run(server: HubServer, tmp_path: Path) -> Run:
    """Runs scripts/release/download_shard.py as a rule does; the shard goes to <tmp_path>/raw."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.upper().startswith(("HF_", "HTTP", "ALL_PROXY"))
    }

    def run(name: str = NAME, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "scripts/release/download_shard.py",
            "--source",
            "hub",
            "--location",
            "acme/release",
        ]
        where = ["--file", name, "--out", str(tmp_path / "raw" / Path(name).name)]
        hub = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "hf")}
        revision = [] if "--revision" in flags else ["--revision", COMMIT]
        return subprocess.run(
            [*command, *revision, *where, *flags],
            cwd=ROOT, env={**clean, **hub, **environment}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one error of a failed run."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    (error,) = (line for line in done.stderr.split("\n") if line.startswith("error: "))
    assert done.stderr.endswith(f"{error}\n")
    return error


def assert_whole(tmp_path: Path, folder: Path, name: str = NAME) -> None:
    """The shard and its record are there, and nothing else of it."""
    out = tmp_path / "raw" / Path(name).name
    assert out.read_bytes() == (folder / name).read_bytes()
    record = read_json(out.with_name(f"{out.name}.json"))
    assert (record["source"], record["file"]) == (SOURCE, name)
    assert (record["bytes"], record["sha256"]) == (out.stat().st_size, sha256_file(folder / name))
    assert not out.with_name(f".{out.name}.part").exists()


def assert_nothing_counts(tmp_path: Path, name: str = NAME) -> None:
    assert list((tmp_path / "raw").glob(f"*{Path(name).name}*")) == []


def test_a_shard_through_hf_endpoint(server: HubServer, run: Run, tmp_path: Path, folder: Path) -> None:
    assert run().returncode == 0
    assert_whole(tmp_path, folder)
    assert server.bodies == [NAME]
    again = run()
    assert again.returncode == 0 and "already there, whole" in again.stdout
    assert server.bodies == [NAME]


def test_a_hub_that_wants_a_token(server: HubServer, run: Run, tmp_path: Path, folder: Path) -> None:
    server.token = "hf_secret"
    for environment in ({}, {"HF_TOKEN": "hf_other"}):
        error = sentence(run(**environment))
        assert "cannot fetch data/train-00004" in error and "401" in error and "set HF_TOKEN" in error
        assert "hf_" not in error.replace("hf_hub", "")
        assert_nothing_counts(tmp_path)
    assert run(HF_TOKEN="hf_secret").returncode == 0
    sent = {(request.method, request.token) for request in server.requests if request.method == "GET"}
    assert sent == {("GET", None)}, "the token stays with the hub"
    assert_whole(tmp_path, folder)


def test_what_is_not_there(server: HubServer, run: Run, tmp_path: Path) -> None:
    error = sentence(run("data/train-00009-of-00011.parquet"))
    assert "cannot fetch data/train-00009-of-00011.parquet" in error and "404" in error
    assert "correct data set, revision or number of shards" in error
    error = sentence(run(NAME, "--revision", "f" * 40))
    assert f"acme/release@{'f' * 40}" in error and "404" in error and "revision" in error
    assert_nothing_counts(tmp_path)
    assert server.bodies == []


def test_no_hub_at_all(run: Run, tmp_path: Path) -> None:
    error = sentence(run(HF_ENDPOINT="http://127.0.0.1:9"))
    assert "cannot fetch" in error and "check data set, revision and network" in error
    assert_nothing_counts(tmp_path)


def test_a_hub_behind_a_proxy(server: HubServer, run: Run, tmp_path: Path, folder: Path) -> None:
    behind = {"HF_ENDPOINT": "http://hub.invalid", "NO_PROXY": "", "no_proxy": ""}
    done = run(HTTP_PROXY=server.endpoint, **behind)
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path, folder)
    hosts = [(request.method, (request.host or "").partition(":")[0]) for request in server.requests]
    assert ("HEAD", "hub.invalid") in hosts and ("GET", "127.0.0.1") in hosts and ("GET", "") not in hosts
    with pytest.raises(socket.gaierror):  # so without the proxy there is no such host
        socket.getaddrinfo("hub.invalid", 80)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_is_busy_for_a_while(
    server: HubServer, run: Run, tmp_path: Path, folder: Path, method: str, status: int
) -> None:
    server.faults[method] = [Fault(status, AGAIN), Fault(status, AGAIN)]
    done = run()
    assert done.returncode == 0, done.stderr
    assert server.faults[method] == []
    assert_whole(tmp_path, folder)


@pytest.mark.parametrize(
    ("status", "remedy"), [(429, "the hub limits requests"), (503, "the hub is out of order")]
)
def test_a_hub_that_stays_busy(server: HubServer, run: Run, tmp_path: Path, status: int, remedy: str) -> None:
    server.faults["HEAD"] = [Fault(status, AGAIN)] * 100
    error = sentence(run())
    assert str(status) in error and remedy in error and "run the same command again" in error
    assert 2 <= len(server.requests) <= 10, "some tries, not an endless number"
    assert_nothing_counts(tmp_path)


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_cut_in_the_middle_goes_on_where_it_broke(
    server: HubServer, run: Run, tmp_path: Path, folder: Path, reset: bool
) -> None:
    server.faults["GET"] = [Fault(after_bytes=15 * MB, reset=reset), Fault(after_bytes=12 * MB, reset=reset)]
    done = run(BIG)
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path, folder, BIG)
    starts = [request.range for request in server.requests if request.method == "GET"]
    if reset:  # what the kernel had received may be lost with the connection
        assert len(starts) == 3 and starts[0] is None
    else:
        assert starts == [None, f"bytes={KEPT_BYTES}-", f"bytes={2 * KEPT_BYTES}-"]


def test_a_run_that_gave_up_or_was_killed_leaves_nothing_in_the_way(
    server: HubServer, run: Run, tmp_path: Path, folder: Path
) -> None:
    leftover = tmp_path / "raw" / f".{Path(NAME).name}.part" / "x.incomplete"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    server.faults["GET"] = [Fault(after_bytes=1000), Fault(403)]
    assert "403" in sentence(run())
    assert_nothing_counts(tmp_path)
    assert run().returncode == 0
    assert_whole(tmp_path, folder)


class Broken(BaseHTTPRequestHandler):
    """Answers nothing but 500."""

    def do_GET(self) -> None:
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("service", ["nobody listens", "answers 500", "gives no token"])
def test_a_chunk_service_that_fails_is_gone_around(
    server: HubServer, run: Run, tmp_path: Path, folder: Path, service: str
) -> None:
    broken = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
    threading.Thread(target=broken.serve_forever, daemon=True).start()
    chunks = {
        "nobody listens": f"http://127.0.0.1:{free_port()}",
        "answers 500": f"http://127.0.0.1:{broken.server_port}",
    }
    server.chunk_service = chunks.get(service, "")
    done = run()
    broken.shutdown()
    broken.server_close()
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path, folder)
    assert server.bodies == [NAME]
    (line,) = (line for line in done.stderr.split("\n") if "again in" in line)
    assert line.startswith(f"{NAME}: ") and line.endswith(
        "; again in 1 s, over plain HTTP instead of the hub's chunk service"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("times", [2, 5])
def test_errors_of_the_chunk_client(
    server: HubServer,
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    times: int,
) -> None:
    """Such as they are raised by versions of the client that do not let themselves be switched to plain HTTP."""
    said = "Data processing error: CAS service error : Error : single flight error: Real call failed"
    real, tries, waits = huggingface_hub.hf_hub_download, [], []

    def fetch(*arguments: Any, **options: Any) -> str:
        tries.append(arguments)
        if len(tries) <= times:
            raise RuntimeError(said)
        return real(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", False)
    monkeypatch.setattr(download.time, "sleep", waits.append)
    out = tmp_path / "raw" / Path(NAME).name
    source = download.HubSource("acme/release", COMMIT, server.endpoint)
    if times == 2:
        assert download.download_shard(source, NAME, out)
        assert_whole(tmp_path, folder)
    else:
        with pytest.raises(UserError) as caught:
            download.download_shard(source, NAME, out)
        assert f"cannot fetch {NAME} of {SOURCE} (RuntimeError: {said})" in str(caught.value)
        assert "set HF_HUB_DISABLE_XET=1" in str(caught.value)
        assert_nothing_counts(tmp_path)
    lines = [line for line in capsys.readouterr().err.split("\n") if "again in" in line]
    assert len(lines) == len(waits) == (2 if times == 2 else 4)


def test_a_long_transfer_says_how_far_it_is(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(download, "REPORT_EVERY_S", 0.01)
    source = download.HubSource("acme/release", COMMIT, server.endpoint)
    download.download_shard(source, BIG, tmp_path / "raw" / Path(BIG).name)
    assert re.search(rf"^{BIG}: \d+\.\d MB after \d+ s$", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize("listed", [True, False])
def test_wrong_bytes_of_the_right_size(
    server: HubServer, run: Run, tmp_path: Path, folder: Path, listed: bool
) -> None:
    right = sha256_file(folder / NAME)
    table = tmp_path / "shards.tsv"
    row = f"{SOURCE}\t{NAME}\t{len(server.served[NAME])}\t{right}\n"
    table.write_text("# why\n" + "\t".join(HEADER) + "\n" + (row if listed else ""))
    server.served[NAME] = flip_bit(server.announced[NAME])
    flags = ["--table", str(table)]
    assert run(OTHER, *flags).returncode == 0
    error = sentence(run(NAME, *flags))
    wrong = hashlib.sha256(server.served[NAME]).hexdigest()
    assert NAME in error and f"sha256 {wrong} instead of {right}" in error
    assert {path.name for path in (tmp_path / "raw").iterdir()} == {
        Path(OTHER).name,
        f"{Path(OTHER).name}.json",
    }
    server.served[NAME] = server.announced[NAME]
    server.requests.clear()
    for name in (NAME, OTHER):
        assert run(name, *flags).returncode == 0
        assert_whole(tmp_path, folder, name)
    assert server.bodies == [NAME]
    record = read_json(tmp_path / "raw" / f"{Path(NAME).name}.json")
    assert record["checked_with"] == ("the hash given" if listed else "the hash that the source announces")


def test_a_hub_that_announces_other_bytes_than_the_table_lists(
    server: HubServer, run: Run, tmp_path: Path, folder: Path
) -> None:
    """Such as a revision that was moved: bytes and announced hash agree, the committed table does not."""
    table = tmp_path / "shards.tsv"
    table.write_text("\t".join(HEADER) + f"\n{SOURCE}\t{NAME}\t12\t{'ab' * 32}\n")
    error = sentence(run(NAME, "--table", str(table)))
    assert f"sha256 {sha256_file(folder / NAME)} instead of {'ab' * 32}" in error
    assert_nothing_counts(tmp_path)


@pytest.mark.parametrize("announced_too", [True, False])
def test_a_truncated_shard(server: HubServer, run: Run, tmp_path: Path, announced_too: bool) -> None:
    server.served[NAME] = server.served[NAME][:-5000]
    if announced_too:
        server.announced[NAME] = server.served[NAME]
    error = sentence(run())
    assert ("is no readable parquet file" if announced_too else "cannot fetch") in error
    assert Path(NAME).name in error
    assert_nothing_counts(tmp_path)


def test_the_hubs_cache_and_offline(server: HubServer, run: Run, tmp_path: Path, folder: Path) -> None:
    error = sentence(run(HF_HUB_OFFLINE="1"))
    assert "HF_HUB_OFFLINE is set" in error and server.requests == []
    cache = (
        "import sys, huggingface_hub as h\n"
        "h.hf_hub_download('acme/release', sys.argv[1], repo_type='dataset', revision=sys.argv[2])"
    )
    environment = {**os.environ, "HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "hf")}
    subprocess.run(
        [sys.executable, "-c", cache, NAME, COMMIT], env=environment, check=True, capture_output=True
    )
    server.requests.clear()
    assert run(HF_HUB_OFFLINE="1").returncode == 0
    assert server.requests == []
    assert_whole(tmp_path, folder)

    out = tmp_path / "raw" / Path(NAME).name
    (blob,) = (path for path in (tmp_path / "hf").rglob("blobs/*") if path.is_file())
    blob.write_bytes(flip_bit(blob.read_bytes()))
    out.unlink()
    error = sentence(run(HF_HUB_OFFLINE="1"))
    assert "a damaged one" in error and server.requests == []
    assert run().returncode == 0
    assert server.bodies == [NAME]
    assert_whole(tmp_path, folder)


def test_a_finished_download_fills_the_table(run: Run, tmp_path: Path, folder: Path) -> None:
    table = tmp_path / "shards.tsv"
    table.write_text("# a note\n" + "\t".join(HEADER) + "\n")

    def record() -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "scripts/release/record_shards.py",
            "--data",
            str(tmp_path),
            "--table",
            str(table),
        ]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert "has no record of a download" in sentence(record())
    for name in (NAME, OTHER):
        assert run(name).returncode == 0
    done = record()
    assert done.returncode == 0 and "2 rows added from 2 records" in done.stdout
    assert table.read_text().startswith("# a note\n")
    rows = [(row.source, row.file, row.size, row.sha256) for row in read_table(table)]
    assert rows == [
        (SOURCE, name, (folder / name).stat().st_size, sha256_file(folder / name)) for name in (NAME, OTHER)
    ]
    assert "0 rows added" in record().stdout
    path = tmp_path / "raw" / f"{Path(NAME).name}.json"
    path.write_text(json.dumps({**read_json(path), "sha256": "cd" * 32}))
    assert f"has other bytes or another sha256 than {table} for {NAME}" in sentence(record())


def test_the_committed_table_can_be_read() -> None:
    for row in read_table(ROOT / "assets/release/shards.tsv"):
        assert len(row.sha256) == 64 and row.size > 0 and "@" in row.source


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file\tbytes\n", "is not a whole table with the columns source, file, bytes, sha256"),
        ("# x\n" + "\t".join(HEADER) + "\na\tb\tmany\tc\n", "line 3 has no size"),
        ("\t".join(HEADER) + "\na\tb\t1\tc\na\tb\t2\tc\n", "line 3 says something else of b of a"),
    ],
)
def test_a_damaged_table_is_told(run: Run, tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "shards.tsv"
    table.write_text(text)
    assert message in sentence(run(NAME, "--table", str(table)))
