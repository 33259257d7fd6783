"""What commands in bubblewrap see of the machine: programs, libraries and an interpreter, but no packages for it.

A machine may hold the package under test a second time, with the right code and perhaps its tests: installed for the
system's Python, as a wheel that another one bundles, as the sources or the documentation of a Debian package. So of
/usr there is what `_USR` lists, with nothing but shared libraries of /usr/local, and of the interpreter's installation
there are its executable, its libraries and its standard library. What holds packages for Python below these is covered:
the folders site-packages and dist-packages, metadata of distributions, and wheels and eggs, as `ensurepip` has them.

/proc shows counters of the whole machine, by which commands could leave word for later ones, or count what others do.
Those that programs seldom read are not shown, and those of /proc/stat are 0. /proc/meminfo and /proc/loadavg are as
they are: programs size themselves by them, and `sysinfo(2)` tells the same.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from lightning_smith.core.errors import UserError

TESTBED = "/opt/testbed"
"""Where a command sees the environment of the testbed's interpreter."""

_LIBRARIES = ("lib/*-linux-gnu*", "lib64")
_USR = (
    # programs, and what they load
    *("bin", "sbin", "lib32", "libx32", *_LIBRARIES, "local/lib/*.so*", "libexec/coreutils", "lib/cargo"),
    *("lib/git-core", "libexec/git-core", "share/git-core", "share/awk", "share/perl", "share/perl5"),
    # compilers
    *("include", "lib/gcc", "libexec/gcc"),
    # the system's Python, and data that it, the C library and programs read
    *("lib/python3.*", "lib/os-release", "lib/locale", "lib/terminfo", "share/terminfo", "share/zoneinfo"),
    *("lib/file", "share/misc"),
)
"""Below /usr, as patterns."""

_INTERPRETER = ("include", "lib", "share/terminfo", "share/zoneinfo")
"""Below the interpreter's installation, beside its executables."""
_EXECUTABLE = re.compile(r"python[\d.]*t?")
_INTERPRETERS_LIBRARIES = re.compile(
    r"python3.*|tcl.*|tk.*|itcl.*|thread.*|engines.*|ossl-modules|.*-linux-gnu.*"
)
"""Folders of `lib` that belong to the interpreter and its libraries; others are covered."""

_SYSTEM_FOLDERS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_SYSTEM_FILES = ("etc/alternatives", "etc/ld.so.cache")

_PACKAGES = re.compile(r"(site|dist)-packages|.*\.(dist|egg)-info|.*\.egg")
"""Names of folders that hold packages or say which ones are installed."""
_PACKAGE_FILES = re.compile(r".*\.(whl|egg|egg-info|pyz)")

_COUNTERS = (
    *("buddyinfo", "diskstats", "interrupts", "pagetypeinfo", "sched_debug", "schedstat", "slabinfo"),
    *("softirqs", "swaps", "timer_list", "vmallocinfo", "vmstat", "zoneinfo"),
)
_FOLDERS_OF_COUNTERS = ("fs", "irq", "pressure", "sys/fs")


@functools.cache
def system_mounts(testbed_python: Path | None, root: Path = Path("/")) -> tuple[str, ...]:
    """Arguments of bubblewrap that bind what commands see of the system and the testbed's environment, all read-only.

    `root` is the folder that stands for the machine's root.
    """
    prefixes = [] if testbed_python is None else _base_python(testbed_python)
    mounts, libraries = _usr(root)
    for folder in _SYSTEM_FOLDERS:
        mounts += _bind(root, root / folder)
        libraries += [] if (root / folder).is_symlink() else [root / folder]
    mounts += [word for file in _SYSTEM_FILES for word in ("--ro-bind-try", str(root / file), f"/{file}")]
    for prefix in prefixes:
        executables = (path for path in (prefix / "bin").glob("python*") if _EXECUTABLE.fullmatch(path.name))
        for path in (*sorted(executables), *(prefix / name for name in _INTERPRETER)):
            mounts += _bind(Path("/"), path)
        for folder in _folders(prefix / "lib"):
            if _INTERPRETERS_LIBRARIES.fullmatch(folder.name):
                mounts += _covers(Path("/"), folder)
            else:
                mounts += _empty_folder(str(folder))
    for folder in libraries:
        mounts += _covers(root, folder)
    if testbed_python is not None:
        mounts += ["--ro-bind", str(testbed_python.absolute().parent.parent), TESTBED]
    return tuple(mounts)


def proc_mounts() -> tuple[str, ...]:
    """Arguments of bubblewrap that cover the machine's counters below /proc, after `--proc /proc`."""
    mounts: list[str] = []
    for name in _COUNTERS:
        mounts += _empty_file(f"/proc/{name}") if Path("/proc", name).exists() else []
    for name in _FOLDERS_OF_COUNTERS:
        mounts += _empty_folder(f"/proc/{name}") if Path("/proc", name).is_dir() else []
    return tuple(mounts)


@functools.cache
def proc_files() -> dict[str, bytes]:
    """Contents of files below /proc: of /proc/stat, with as many processors as there are and counters that are 0."""
    lines = Path("/proc/stat").read_text().splitlines()
    return {"/proc/stat": "".join(f"{_without_counts(line)}\n" for line in lines).encode()}


def _without_counts(line: str) -> str:
    """Return a line of /proc/stat; the moment at which the machine was started stays."""
    name, *counts = line.split(" ")
    if name == "btime":
        return line
    return " ".join([name, *("0" if count else "" for count in (counts[:1] if name == "intr" else counts))])


def _usr(root: Path) -> tuple[list[str], list[Path]]:
    """Arguments that bind what is needed of /usr, and the folders among it that may hold packages."""
    usr = root / "usr"
    patterns: tuple[str, ...] = _USR
    if not any(
        folder.is_dir() and not folder.is_symlink() for name in _LIBRARIES for folder in usr.glob(name)
    ):
        patterns = ("lib", *(pattern for pattern in _USR if not pattern.startswith("lib/")))
    found = [path for pattern in patterns for path in sorted(usr.glob(pattern))]
    libraries = [
        path for path in found if path.relative_to(usr).parts[0].startswith("lib") and not path.is_symlink()
    ]
    return [word for path in found for word in _bind(root, path)], libraries


def _bind(root: Path, path: Path) -> list[str]:
    """Arguments that show a path of `root` where it is; nothing if it does not exist."""
    inside = f"/{path.relative_to(root)}"
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), inside]
    return ["--ro-bind", str(path), inside] if path.exists() else []


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, if it is one, without links."""
    return (
        [] if folder.is_symlink() else [path for path in sorted(folder.glob("*/")) if not path.is_symlink()]
    )


def _covers(root: Path, folder: Path) -> Iterator[str]:
    """Arguments that cover what holds packages in a folder that is bound."""
    for where, folders, files in os.walk(folder):
        inside = f"/{Path(where).relative_to(root)}"
        for name in files:
            if _PACKAGE_FILES.fullmatch(name) and not Path(where, name).is_symlink():
                yield from _empty_file(f"{inside}/{name}")
        for name in [name for name in folders if _PACKAGES.fullmatch(name)]:
            folders.remove(name)
            if not Path(where, name).is_symlink():
                yield from _empty_folder(f"{inside}/{name}")


def _empty_file(inside: str) -> tuple[str, ...]:
    return ("--dev-bind", "/dev/null", inside)


def _empty_folder(inside: str) -> tuple[str, ...]:
    return ("--tmpfs", inside, "--remount-ro", inside)


def _base_python(testbed_python: Path) -> list[Path]:
    """Folders of the installation that a virtual environment links to, by name and by real path, unless it is /usr."""
    settings = testbed_python.absolute().parent.parent / "pyvenv.cfg"
    try:
        lines = settings.read_text().splitlines()
    except OSError:
        raise UserError(
            f"{settings} does not exist: the testbed's Python must be that of a virtual environment"
        ) from None
    values = dict(line.split(" = ", 1) for line in lines if " = " in line)
    if values.get("include-system-site-packages", "false").strip().lower() == "true":
        raise UserError(
            f"{settings} includes the system's site-packages, which sandboxes do not show: make the environment with "
            "`uv sync --frozen --compile-bytecode --project envs/testbed`"
        )
    folders = {Path(values["home"]).parent, testbed_python.resolve().parent.parent}
    return sorted(folders - {Path("/"), Path("/usr")})
