"""The miniature's distributions: fetched from the user's package index, checked, unpacked safely."""

from __future__ import annotations

import configparser
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file
from lightning_smith.miniature.tasks.table import Source

PUBLIC_INDEX = "https://pypi.org/simple/"

TIMEOUT_S = 60.0
"""Of one connection or of a silence within a download."""

RETRIES = 3


def find_source(sources: Iterable[Source], package: str, filename: str) -> Source:
    """Return the row of a package; of several the one with this file name, else the first."""
    rows = [source for source in sources if source.package == package]
    if not rows:
        raise UserError(f"sources.tsv has no package {package}: check its spelling or add a row")
    return next((row for row in rows if row.filename == filename), rows[0])


def pip_config_files(environ: Mapping[str, str]) -> list[Path]:
    """Return where pip reads its configuration, the strongest first."""
    if (named := environ.get("PIP_CONFIG_FILE")) is not None:
        return [Path(named)]
    home = Path(environ.get("HOME", "~")).expanduser()
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return [user / "pip" / "pip.conf", home / ".pip" / "pip.conf", Path("/etc/pip.conf")]


def _pip_setting(name: str, files: Iterable[Path]) -> str | None:
    for file in files:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself says what is wrong with it
        for section in ("download", "install", "global"):
            if value := parser.get(section, name, fallback=None):
                return value.strip()
    return None


def index_url(environ: Mapping[str, str], config_files: Iterable[Path] | None = None) -> str:
    """Return the package index that uv or pip would use: environment, then pip.conf, then the public one."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if value := environ.get(name, "").strip():
            # uv accepts `name=url`, too.
            label, equals, url = value.partition("=")
            return url if equals and "/" not in label else value
    files = pip_config_files(environ) if config_files is None else config_files
    return _pip_setting("index-url", files) or PUBLIC_INDEX


def without_credentials(url: str) -> str:
    """Return a URL that may be printed: user name and password are left out."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def fetch_sdist(source: Source, out: Path | str, environ: Mapping[str, str] | None = None) -> bool:
    """Bring a pinned distribution file to `out`; returns False if it was there already.

    A file already there is used if its sha256 is right and replaced otherwise. The download is written beside
    `out`, checked and renamed, so `out` is whole or absent. Raise UserError for an index that cannot be
    reached, a file it does not have, a download cut short and a wrong sha256. Needs pypi-simple.
    """
    out = Path(out)
    if out.is_file() and sha256_file(out) == source.sha256:
        return False
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    os.close(handle)
    partial = Path(name)
    try:
        _download(source, partial, os.environ if environ is None else environ)
        found = sha256_file(partial)
        if found != source.sha256:
            raise UserError(
                f"{source.filename} from the package index has sha256 {found} instead of {source.sha256}: "
                "use an index with the original file, or correct sources.tsv if the change is meant"
            )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(out)
    except OSError as error:
        if not error.filename:
            error.filename = str(out)  # a full disk is reported with the name of the file
        raise
    finally:
        partial.unlink(missing_ok=True)
    return True


def _download(source: Source, path: Path, environ: Mapping[str, str]) -> None:
    """Write the file's bytes, unchecked, to `path`."""
    import requests
    from pypi_simple import NoSuchProjectError, PyPISimple, UnsupportedContentTypeError
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    index = index_url(environ)
    shown = without_credentials(index)
    by_hand = f"or put the file with sha256 {source.sha256} there yourself"
    retry = Retry(RETRIES, backoff_factor=0.5, status_forcelist=[429, 500, 502, 503, 504])
    with requests.Session() as session:
        session.mount("https://", HTTPAdapter(max_retries=retry))
        session.mount("http://", HTTPAdapter(max_retries=retry))
        certificates = (
            environ.get("PIP_CERT")
            or environ.get("SSL_CERT_FILE")
            or _pip_setting("cert", pip_config_files(environ))
        )
        if certificates:
            session.verify = certificates
        client = PyPISimple(index, session=session)
        try:
            page = client.get_project_page(source.package, timeout=TIMEOUT_S)
            package = next((each for each in page.packages if each.filename == source.filename), None)
            if package is None:
                raise UserError(
                    f"the package index {shown} lists no file {source.filename}: set UV_DEFAULT_INDEX or "
                    f"PIP_INDEX_URL to one that has it, {by_hand}"
                )
            client.download_package(package, path, verify=False, timeout=TIMEOUT_S)
        except NoSuchProjectError:
            raise UserError(
                f"the package index {shown} has no package {source.package}: set UV_DEFAULT_INDEX or "
                f"PIP_INDEX_URL to one that has it, {by_hand}"
            ) from None
        except UnsupportedContentTypeError:
            raise UserError(
                f"{shown} does not answer as a package index does: set UV_DEFAULT_INDEX or PIP_INDEX_URL"
            ) from None
        except requests.HTTPError as error:
            status = "an error" if error.response is None else error.response.status_code
            raise UserError(
                f"the package index {shown} answers {status} for {source.filename}: try later, {by_hand}"
            ) from None
        except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError):
            raise UserError(
                f"the download of {source.filename} from {shown} was cut short: try again, {by_hand}"
            ) from None
        except requests.RequestException as error:
            raise UserError(
                f"cannot reach the package index {shown} ({type(error).__name__}): check the network, set "
                f"UV_DEFAULT_INDEX or PIP_INDEX_URL to an index that can be reached, {by_hand}"
            ) from None


def unpack_sdist(archive: Path | str, target: Path | str) -> None:
    """Unpack a sdist (.tar.gz) so that its single top folder becomes `target`, which must not exist.

    Members that would leave the folder, links to outside and devices are refused (tarfile's filter "data").
    """
    archive, target = Path(archive), Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unpack-") as folder:
        try:
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
        except FileNotFoundError:
            raise UserError(
                f"{archive} does not exist: fetch it with scripts/miniature/fetch_sdist.py"
            ) from None
        except (tarfile.TarError, EOFError) as error:
            raise UserError(f"{archive} cannot be unpacked ({error}): delete it and fetch it again") from None
        tops = list(Path(folder).iterdir())
        if len(tops) != 1 or not tops[0].is_dir():
            raise UserError(f"{archive} does not hold one top folder as a sdist does: pin another file")
        tops[0].rename(target)
