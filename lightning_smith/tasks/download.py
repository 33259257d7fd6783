"""Fetching one shard of a release, whole and with the right hash or not at all.

    download_shard(HubSource("SWE-bench/SWE-smith", revision), "data/train-00004-of-00011.parquet", out)

A file of the announced length can still hold other bytes, and clients compare lengths only. So the sha256 of
what arrived is always compared: with the one given, else with what the source announces (a folder's
SHA256SUMS, the hub's hash of the blob). What does not match is deleted, so that the next try fetches it anew.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from lightning_smith.errors import UserError
from lightning_smith.files import sha256_file
from lightning_smith.tasks.columns import check_schema

SUMS_FILE = "SHA256SUMS"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ShardSource(Protocol):
    """Where the files of a release come from."""

    label: str
    """Names the source in messages."""

    def announced_sha256(self, name: str) -> str | None:
        """Hexadecimal sha256 that the source gives for a file, None if it gives none."""
        ...

    def fetch(self, name: str, folder: Path) -> Path:
        """Put the file below `folder`, which may hold a part of it from an earlier try; returns its path."""
        ...


class FolderSource:
    """A folder of the hub's shape with a file SHA256SUMS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.label = str(folder)

    def announced_sha256(self, name: str) -> str | None:
        path = self.folder / SUMS_FILE
        sums: dict[str, str] = {}
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            raise UserError(
                f"{path} does not exist: build the release first (scripts/build_release.py)"
            ) from None
        for line in lines:
            digest, _, listed = line.partition("  ")
            sums[listed] = digest
        return sums.get(name)

    def fetch(self, name: str, folder: Path) -> Path:
        if not (self.folder / name).is_file():
            raise UserError(
                f"{self.folder} has no {name}: build the release again (scripts/build_release.py)"
            )
        return Path(shutil.copyfile(self.folder / name, folder / Path(name).name))


class HubSource:
    """A data set of the Hugging Face hub at one revision; `endpoint` is the hub's address if another."""

    def __init__(self, dataset: str, revision: str, endpoint: str | None = None) -> None:
        self.dataset, self.revision, self.endpoint = dataset, revision, endpoint
        self.label = f"{dataset}@{revision}"
        try:
            import huggingface_hub
        except ImportError:
            raise UserError(
                "huggingface_hub is not installed, which fetches the release: uv pip install huggingface_hub"
            ) from None
        self._hub = huggingface_hub

    def announced_sha256(self, name: str) -> str | None:
        url = self._hub.hf_hub_url(
            self.dataset, name, repo_type="dataset", revision=self.revision, endpoint=self.endpoint
        )
        etag = self._call(name, lambda: self._hub.get_hf_file_metadata(url, endpoint=self.endpoint)).etag
        # Files outside large-file storage are announced with their git hash, which says nothing about sha256.
        return etag if etag and _SHA256.fullmatch(etag) else None

    def fetch(self, name: str, folder: Path) -> Path:
        # A folder of our own, not the shared cache: there a damaged blob would be taken for whole ever after.
        return Path(
            self._call(
                name,
                lambda: self._hub.hf_hub_download(
                    self.dataset,
                    name,
                    repo_type="dataset",
                    revision=self.revision,
                    local_dir=folder,
                    endpoint=self.endpoint,
                ),
            )
        )

    def _call(self, name: str, request: Callable[[], Any]) -> Any:
        """The result of a request; a UserError for what the hub refuses or if it cannot be reached."""
        try:
            return request()
        except Exception as error:  # the client lets the errors of its HTTP library through, which changes
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            first_line = str(error).strip().split("\n")[0].rstrip(".")
            reason = f"{type(error).__name__}: {first_line}"
            raise UserError(
                f"cannot fetch {name} of {self.label} ({reason}): "
                "check data set, revision and network, then run the same command again"
            ) from None


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
    kind. Raises UserError, and leaves nothing at
    `out`, for a file that is missing, truncated or altered, for one without a known hash, and for one that is
    no SWE-smith shard (or whatever `check` looks for).
    """
    wanted = sha256 or source.announced_sha256(name)
    if wanted is None:
        raise UserError(f"{source.label} announces no sha256 of {name}: give it with --sha256")
    if not _SHA256.fullmatch(wanted):
        raise UserError(f"the sha256 {wanted!r} given for {name} is not 64 lower-case hexadecimal digits")
    if out.is_file() and sha256_file(out) == wanted:
        return False
    out.unlink(missing_ok=True)
    folder = out.parent / f".{out.name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fetched = source.fetch(name, folder)
    except BaseException:
        # What had arrived of a shard stays for the next try.
        with suppress(OSError):
            folder.rmdir()
        raise
    try:
        found = sha256_file(fetched)
        if found != wanted:
            raise UserError(
                f"{name} of {source.label} arrived with sha256 {found} instead of {wanted} "
                f"({fetched.stat().st_size} bytes): it was cut or altered, run the same command again"
            )
        check(fetched)
        fetched.replace(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True
