"""Fetching one shard of a release, whole and with the right hash or not at all.

    download_shard(HubSource("SWE-bench/SWE-smith", revision), "data/train-00004-of-00011.parquet", out)

A file of the announced length can still hold other bytes, and clients compare lengths only. So the sha256 of
what arrived is always compared: with the one given (the committed table, `shard_table`), else with what the source
announces (a folder's SHA256SUMS, the hub's hash of the blob). What does not match is deleted, so that the next try
fetches it anew. What was compared with what is recorded beside the shard, in `<shard>.json`.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file, write_json
from lightning_smith.release.columns import check_schema
from lightning_smith.release.pins import known_sha256, read_table

SUMS_FILE = "SHA256SUMS"
TRIES = 5
"""Of one transfer, each from its beginning. Where a connection ends too soon, the client goes on by itself."""
REPORT_EVERY_S = 15.0
"""How often a transfer that goes on says how far it is."""

_SUM = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")
"""A line of sha256sum, with `*` before files that were read as binary ones."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ShardSource(Protocol):
    """Where the files of a release come from."""

    label: str
    """Names the source in messages."""

    def announced_sha256(self, name: str) -> str | None:
        """Return the hexadecimal sha256 that the source gives for a file, None if it gives none."""
        ...

    def fetch(self, name: str, folder: Path, sha256: str) -> Path:
        """Put the file below `folder`, which is empty; returns its path.

        `sha256` is what it must have; the source need not check it.
        """
        ...


class FolderSource:
    """A folder of the hub's shape with a file SHA256SUMS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.label = str(folder)

    def announced_sha256(self, name: str) -> str | None:
        path = self.folder / SUMS_FILE
        again = f"write it (cd {shlex.quote(str(self.folder))} && sha256sum data/*.parquet > {SUMS_FILE})"
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            raise UserError(
                f"{path} does not exist: build the miniature's release first (scripts/miniature/build_release.py), "
                f"or {again}"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read ({error}): {again}") from None
        found = {listed[2]: listed[1].lower() for line in lines if (listed := _SUM.fullmatch(line))}
        if name not in found:
            raise UserError(f"{path} announces no sha256 of {name}: {again}")
        return found[name]

    def fetch(self, name: str, folder: Path, sha256: str) -> Path:
        if not (self.folder / name).is_file():
            raise UserError(
                f"{self.folder} has no {name}: build the release again, or correct release.folder and release.shards"
            )
        return Path(shutil.copyfile(self.folder / name, folder / Path(name).name))


class HubSource:
    """A data set of the Hugging Face hub at one revision; `endpoint` is the hub's address if another.

    HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE and the proxies' variables mean what they mean to every client of
    the hub. A file that the hub's cache holds is taken from there, if its hash is right.
    """

    def __init__(self, dataset: str, revision: str, endpoint: str | None = None) -> None:
        self.dataset, self.revision, self.endpoint = dataset, revision, endpoint
        self.label = f"{dataset}@{revision}"
        try:
            import huggingface_hub
            import huggingface_hub.constants
        except ImportError:
            raise UserError(
                "huggingface_hub is not installed, which fetches the release: uv pip install huggingface_hub"
            ) from None
        self._hub = huggingface_hub
        # Left alone, the chunk service's client tries for five minutes and says nothing.
        os.environ.setdefault("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "2")

    def announced_sha256(self, name: str) -> str | None:
        if self._offline():
            # A blob of the cache is named by what the hub announced of it.
            cached = self._cached(name)
            if cached is None:
                raise UserError(self._sentence(name, "it is not in the hub's cache"))
            etag = cached.resolve().name
        else:
            url = self._hub.hf_hub_url(
                self.dataset, name, repo_type="dataset", revision=self.revision, endpoint=self.endpoint
            )
            read = self._hub.get_hf_file_metadata
            ask = partial(read, url, endpoint=self.endpoint, retry_on_errors=True)
            etag = self._call(name, ask, tries=1).etag
        # Files outside large-file storage are announced with their git hash, which says nothing about sha256.
        return etag if etag and _SHA256.fullmatch(etag) else None

    def fetch(self, name: str, folder: Path, sha256: str) -> Path:
        cached = self._cached(name)
        if cached and sha256_file(cached) == sha256:
            return Path(shutil.copyfile(cached, folder / Path(name).name))

        def download() -> str:
            # A folder of our own, not the shared cache: there a damaged blob would be taken for whole ever after.
            return self._hub.hf_hub_download(
                self.dataset,
                name,
                repo_type="dataset",
                revision=self.revision,
                local_dir=folder,
                cache_dir=folder / "cache",
                endpoint=self.endpoint,
            )

        with _reported(name, folder):
            return Path(self._call(name, download, tries=TRIES))

    def _offline(self) -> bool:
        return self._hub.is_offline_mode()

    def _cached(self, name: str) -> Path | None:
        found = self._hub.try_to_load_from_cache(
            self.dataset, name, repo_type="dataset", revision=self.revision
        )
        return Path(found) if isinstance(found, str) else None

    def _call(self, name: str, request: Callable[[], Any], *, tries: int) -> Any:
        """Return the result of a request, tried again where that can help; a UserError says why there is none."""
        for tried in range(1, tries + 1):
            try:
                return request()
            except (
                Exception
            ) as error:  # the client lets the errors of its HTTP library through, which changes
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                chunked = _is_of_chunk_service(error)
                if tried == tries or not (chunked or _is_transient(error)):
                    raise UserError(self._sentence(name, error)) from None
                wait_s = 2.0 ** (tried - 1)
                again = f"again in {wait_s:g} s"
                if chunked:  # as with HF_HUB_DISABLE_XET=1, which the client reads at its start alone
                    self._hub.constants.HF_HUB_DISABLE_XET = True
                    again += ", over plain HTTP instead of the hub's chunk service"
                print(f"{name}: {_first_line(error)}; {again}", file=sys.stderr, flush=True)
                time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _sentence(self, name: str, error: Exception | str) -> str:
        reason = error if isinstance(error, str) else _first_line(error)
        status = None if isinstance(error, str) else _status(error)
        remedy = "check data set, revision and network"
        if isinstance(error, Exception) and _is_of_chunk_service(error):
            remedy = (
                "the hub's chunk service fails, so set HF_HUB_DISABLE_XET=1, which fetches over plain HTTP"
            )
        match status:
            case 401 | 403:
                remedy = "set HF_TOKEN to a token that may read it, or correct the data set's name"
            case 404:
                remedy = "correct data set, revision or number of shards in the configuration"
            case 429:
                remedy = "the hub limits requests, so wait some minutes, or set HF_TOKEN for a higher limit"
            case int() if status >= 500:
                remedy = "the hub is out of order, so wait"
        if self._offline():
            remedy = "HF_HUB_OFFLINE is set and the cache has no such file or a damaged one, so unset it"
        return f"cannot fetch {name} of {self.label} ({reason}): {remedy}, then run the same command again"


def _first_line(error: Exception) -> str:
    first_line = str(error).strip().split("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__


def _status(error: BaseException | None) -> int | None:
    """Return the HTTP status behind an error of the client, None if there is none."""
    while error is not None:
        if (status := getattr(getattr(error, "response", None), "status_code", None)) is not None:
            return int(status)
        error = error.__cause__
    return None


def _is_transient(error: Exception) -> bool:
    """Return whether a transfer broke off for a reason that may have passed; what the client tried again itself has
    not.
    """
    status = _status(error)
    if status is not None:
        return status >= 500 and type(error).__name__ == "HfHubHTTPError"
    return type(error).__module__.startswith("httpx")


def _is_of_chunk_service(error: Exception) -> bool:
    """Return whether fetching by chunks (hf_xet) failed, of which the client lets plain RuntimeErrors and others
    through.
    """
    frames = (frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__))
    return type(error) is RuntimeError or "xet_get" in frames


@contextmanager
def _reported(name: str, folder: Path) -> Iterator[None]:
    """Print now and then how much of a file has arrived below `folder`, so that a slow transfer is not a silent one."""
    done = threading.Event()
    started = time.monotonic()

    def report() -> None:
        while not done.wait(REPORT_EVERY_S):
            sizes = []
            for path in folder.rglob("*"):
                with suppress(OSError):  # it was renamed meanwhile
                    sizes.append(path.stat().st_size if path.is_file() else 0)
            mb, seconds = sum(sizes) / 1e6, time.monotonic() - started
            print(f"{name}: {mb:.1f} MB after {seconds:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def download_shard(
    source: ShardSource,
    name: str,
    out: Path,
    sha256: str | None = None,
    *,
    check: Callable[[Path], object] = check_schema,
) -> bool:
    """Fetch the file `name` to `out`; returns False if it was there already, whole.

    `sha256` (hexadecimal) goes before what the source announces; `check` raises UserError for a file of another
    kind. Writes `record_path(out)` as well. Raise UserError, and leaves nothing at
    `out`, for a file that is missing, truncated or altered, for one without a known hash, and for one that is
    no SWE-smith shard (or whatever `check` looks for).
    """
    wanted = sha256 or source.announced_sha256(name)
    if wanted is None:
        raise UserError(f"{source.label} announces no sha256 of {name}: give it with --sha256")
    if not _SHA256.fullmatch(wanted):
        raise UserError(f"the sha256 {wanted!r} given for {name} is not 64 lower-case hexadecimal digits")
    checked_with = "the hash given" if sha256 else "the hash that the source announces"
    if out.is_file() and sha256_file(out) == wanted:
        _record(source, name, out, wanted, checked_with)
        return False
    out.unlink(missing_ok=True)
    record_path(out).unlink(missing_ok=True)
    folder = out.parent / f".{out.name}.part"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    try:
        fetched = source.fetch(name, folder, wanted)
        found = sha256_file(fetched)
        if found != wanted:
            raise UserError(
                f"{name} of {source.label} arrived with sha256 {found} instead of {wanted} "
                f"({fetched.stat().st_size} bytes): it was cut or altered, run the same command again"
            )
        check(fetched)
        fetched.replace(out)
    except OSError as error:
        error.filename = str(out)  # a copy would name what it read
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _record(source, name, out, wanted, checked_with)
    return True


def record_path(out: Path) -> Path:
    """Return where `download_shard` records what it checked of the file at `out`."""
    return out.with_name(f"{out.name}.json")


def _record(source: ShardSource, name: str, out: Path, sha256: str, checked_with: str) -> None:
    row = {"source": source.label, "file": name, "bytes": out.stat().st_size, "sha256": sha256}
    write_json(record_path(out), {**row, "checked_with": checked_with})


def add_source_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say where a file comes from and what hash it must have."""
    add = parser.add_argument
    add("--source", choices=("folder", "hub"), required=True, help="a local folder, or Hugging Face")
    add("--location", required=True, help="the folder, or the id of the data set")
    add("--revision", default="none", help="commit or branch of the data set (hub only)")
    add("--sha256", help="expected hash; left out: that of the table, else what the source announces")
    add("--table", type=Path, help="sizes and hashes of known files (assets/release/shards.tsv)")


def source_and_hash(args: argparse.Namespace) -> tuple[ShardSource, str | None]:
    """Return what `add_source_flags` was given: the source, and the hash that `args.file` must have if it is known."""
    if args.source == "folder":
        source = FolderSource(Path(args.location))
    elif args.revision == "none":
        raise UserError(
            "a data set of the hub needs --revision: without one it may change between two shards"
        )
    else:
        source = HubSource(args.location, args.revision)
    if args.sha256 or not args.table:
        return source, args.sha256
    return source, known_sha256(read_table(args.table), source.label, args.file)
