"""What of a machine a sandbox binds: made-up machines, with packages planted where they may lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.sandbox.machine_view import TESTBED, proc_files, system_mounts

DEBIAN = (
    *(
        "bin/git",
        "lib/x86_64-linux-gnu/libc.so.6",
        "lib/python3.11/json/__init__.py",
        "lib/git-core/git-apply",
    ),
    *("share/zoneinfo/UTC", "share/git-core/templates/description", "include/stdio.h"),
)
PLANTED = (
    *("lib/python3/dist-packages/widget/core.py", "local/lib/python3.11/dist-packages/widget/core.py"),
    *(
        "share/doc/widget/tests.py",
        "src/widget/core.py",
        "share/python-wheels/widget-1.0.whl",
        "local/widget/core.py",
    ),
    *("lib/widget/core.py", "share/widget/core.py", "games/widget.py"),
)
COVERED_FOLDERS = (
    "lib/python3.11/dist-packages",
    "lib/python3.11/site-packages",
    "lib/python3.11/widget.egg-info",
    "lib/x86_64-linux-gnu/vendor/site-packages",
)
COVERED_FILES = ("lib/python3.11/ensurepip/_bundled/pip-23.whl", "lib/x86_64-linux-gnu/widget-1.0.egg")


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


class View:
    """What the arguments of bubblewrap show: the last one that names a path, or a folder above it, decides."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.shown: dict[str, str | None] = {}
        words = iter(arguments)
        for option in words:
            if option in ("--ro-bind", "--ro-bind-try", "--dev-bind", "--symlink"):
                source = next(words)
                self.shown[next(words)] = source
            else:
                self.shown[next(words)] = None
                assert option in ("--tmpfs", "--remount-ro")

    def __getitem__(self, path: Path | str) -> str | None:
        """What is at a path: where it comes from, or None if there is nothing."""
        for folder in (Path(path), *Path(path).parents):
            if (name := str(folder)) in self.shown:
                return self.shown[name]
        return None


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = tmp_path / "machine"
    make(root / "usr", *DEBIAN, *PLANTED, *(f"{name}/x.py" for name in COVERED_FOLDERS), *COVERED_FILES)
    for name in ("bin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    return root


def test_of_usr_there_are_programs_and_libraries_and_no_packages(machine: Path) -> None:
    view = View(system_mounts(None, machine))
    for name in DEBIAN:
        assert view[f"/usr/{name}"] is not None, name
    for name in (*PLANTED, *(f"{folder}/x.py" for folder in COVERED_FOLDERS)):
        assert view[f"/usr/{name}"] is None, name
    for name in COVERED_FILES:
        assert view[f"/usr/{name}"] == "/dev/null", name
    assert (view["/bin"], view["/lib"], view["/sbin"]) == ("usr/bin", "usr/lib", None)
    assert view["/etc/alternatives"] == str(machine / "etc/alternatives") and view["/etc/passwd"] is None


def test_a_machine_with_its_libraries_right_in_usr_lib(tmp_path: Path) -> None:
    make(
        tmp_path / "usr",
        "bin/git",
        "lib/libc.so.6",
        "lib/python3.13/site-packages/widget.py",
        "local/widget.py",
    )
    (tmp_path / "usr/lib64").symlink_to("lib")
    view = View(system_mounts(None, tmp_path))
    assert view["/usr/lib/libc.so.6"] == str(tmp_path / "usr/lib") and view["/usr/lib64"] == "lib"
    assert (
        view["/usr/lib/python3.13/site-packages/widget.py"] is None and view["/usr/local/widget.py"] is None
    )


def make_environment(folder: Path, base: Path, *, system: bool = False) -> Path:
    """A virtual environment of the interpreter below `base`; returns its Python."""
    make(base, "bin/python3.12", "lib/python3.12/json/__init__.py", "lib/libpython3.12.so")
    make(folder, "lib/python3.12/site-packages/pytest.py")
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(base / "bin/python3.12")
    settings = f"home = {base}/bin\ninclude-system-site-packages = {str(system).lower()}\n"
    (folder / "pyvenv.cfg").write_text(settings)
    return folder / "bin/python"


def test_of_an_interpreter_there_is_no_package(machine: Path, tmp_path: Path) -> None:
    """Of an installation for itself, and of one in a folder where other things lie as well."""
    base, environment = tmp_path / "shared", tmp_path / "environment"
    python = make_environment(environment, base)
    make(
        base,
        "lib/python3.12/site-packages/widget/core.py",
        "lib/widget/core.py",
        "share/keyring",
        "bin/widget",
    )
    make(base, "lib/python3.12/ensurepip/_bundled/pip-23.whl", "lib/tcl8.6/init.tcl", "pkgs/widget/core.py")
    make(base, "lib/widget/site-packages/widget.py", "lib/widget-1.0/widget.whl")
    (base / "bin/python3").symlink_to("python3.12")
    view = View(system_mounts(python, machine))
    for name in (
        "bin/python3.12",
        "lib/python3.12/json/__init__.py",
        "lib/libpython3.12.so",
        "lib/tcl8.6/init.tcl",
    ):
        assert view[base / name] is not None, name
    assert view[base / "bin/python3"] == "python3.12" and view[f"{TESTBED}/lib"] == str(environment)
    for name in (
        "lib/python3.12/site-packages/widget/core.py",
        "lib/widget/core.py",
        "share/keyring",
        "bin/widget",
    ):
        assert view[base / name] is None, name
    assert view[base / "pkgs/widget/core.py"] is None
    # Nothing is covered inside of what is covered, where there is no place to mount at.
    assert not [path for path in view.shown if path.startswith(f"{base}/lib/widget/")]
    assert view[base / "lib/python3.12/ensurepip/_bundled/pip-23.whl"] == "/dev/null"


def test_an_environment_with_the_systems_packages_is_refused(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", tmp_path / "base", system=True)
    with pytest.raises(
        UserError, match=r"environment/pyvenv.cfg includes the system's site-packages.*uv sync"
    ):
        system_mounts(python)
    with pytest.raises(UserError, match=r"nothing/pyvenv.cfg does not exist"):
        system_mounts(tmp_path / "nothing/bin/python")


def test_counters_are_0() -> None:
    real = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    shown = [line.split() for line in proc_files()["/proc/stat"].decode().splitlines()]
    assert [line[0] for line in shown] == [line[0] for line in real]
    assert {name: counts for name, *counts in shown}["btime"] == {name: counts for name, *counts in real}[
        "btime"
    ]
    assert {count for name, *counts in shown for count in counts if name != "btime"} == {"0"}
    assert len(shown[0]) == len(real[0])
