"""Docker images made of this machine's own programs: the layout of SWE-smith's, without a registry.

The tree holds bash, git, the core utilities and a conda-like environment (/opt/miniconda3/envs/testbed) with Python
and pytest. /testbed is a clone of the tiny image's repository, as SWE-smith makes it.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sysconfig
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import tiny_image
from docker.errors import APIError, NotFound

from lightning_smith.core.git import git
from lightning_smith.images.daemon import Daemon
from lightning_smith.images.docker import TEST_COMMAND_LABEL
from lightning_smith.repositories.names import image_key
from lightning_smith.repositories.revisions import TEST_COMMAND

PROGRAMS = """
    base64 basename bash cat chmod chown cp cut dd df dirname du echo env expr false find git grep gzip head hostname
    id kill ln ls mkdir mkfifo mknod mktemp mv nice nohup od patch pkill printenv printf ps pwd readlink realpath rm
    rmdir sed seq setsid sh sha256sum sleep sort stat strace stty sync tac tail tar tee test timeout touch tr true
    uname uniq unshare wc which xargs yes
"""
CONDA = "opt/miniconda3"
TESTBED = f"{CONDA}/envs/testbed"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
C_LIBRARY = ("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libutil.so.1")

ACTIVATE = """\
export CONDA_PREFIX=/opt/miniconda3/envs/testbed CONDA_DEFAULT_ENV=testbed
export PATH=/opt/miniconda3/envs/testbed/bin:/opt/miniconda3/condabin:$PATH
conda() { :; }
"""
PYTEST = f"#!/{TESTBED}/bin/python\nimport sys\nimport pytest\nsys.exit(pytest.main())\n"
_LEFT_OUT = re.compile(
    r"(^|/)(test|tests|idlelib|ensurepip|tkinter|turtledemo|lib2to3|site-packages|config-[^/]*)(/|$)|\.opt-[12]\.pyc$|\.a$"
)

_LABEL = f"LABEL {TEST_COMMAND_LABEL}={json.dumps(json.dumps(TEST_COMMAND))}"

imported: set[str] = set()
"""Ids of the images of this session."""


class Tree:
    """Files for `docker import`, owned by root."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._archive = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115
        self._names: set[str] = set()

    def folder(self, name: str, mode: int = 0o755) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.mode = tarfile.DIRTYPE, mode
        self._archive.addfile(member)

    def text(self, name: str, text: str, mode: int = 0o644) -> None:
        self.add_bytes(name, text.encode(), mode)

    def add_bytes(self, name: str, data: bytes, mode: int = 0o644) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(data), mode
        self._archive.addfile(member, io.BytesIO(data))

    def link(self, name: str, target: str) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        self._archive.addfile(member)

    def add(
        self, source: Path, name: str, *, leave_out: re.Pattern[str] | None = None, owner: int = 0
    ) -> None:
        """A file, its links followed, or a folder with all below it, links kept."""
        if name in self._names:
            return
        self._names.add(name)

        def as_root(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            if leave_out and leave_out.search(member.name.removeprefix(name)):
                return None
            member.uid = member.gid = owner
            member.uname = member.gname = ""
            return member

        self._archive.add(source.resolve(), name, filter=as_root)

    def programs(self, names: Iterable[str]) -> None:
        """Programs of this machine that are there, with their libraries."""
        for name in names:
            if (found := shutil.which(name)) is not None:
                self.add(Path(found), f"usr/bin/{name}")
                self.libraries_of(Path(found))

    def libraries_of(self, program: Path) -> None:
        done = subprocess.run(["ldd", str(program.resolve())], capture_output=True, text=True, check=False)
        for found in re.findall(r"(?:=> |^\s*)(/\S+)", done.stdout, re.M):
            library = Path(found)
            place = "usr/lib64" if library.name.startswith("ld-linux") else LIBRARIES
            self.add(library, f"{place}/{library.name}")

    def data(self) -> bytes:
        self._archive.close()
        return self._buffer.getvalue()


def base_tree(programs: Sequence[str] | None = None, accounts: str = "") -> Tree:
    """Everything but /testbed; `programs` are all that it has, if given (with `python`, an interpreter)."""
    tree = Tree()
    for name in ("etc", "dev", "proc", "sys", "run", "root", "var/tmp", "usr/bin", "usr/lib64", LIBRARIES):
        tree.folder(name)
    tree.folder("tmp", 0o1777)
    for name in ("bin", "lib", "lib64"):
        tree.link(name, f"usr/{name}")
    tree.link("sbin", "usr/bin")
    tree.text(
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n" + accounts,
    )
    tree.text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
    tree.text("root/.bashrc", f"source /{CONDA}/bin/activate testbed\n")
    wanted = PROGRAMS.split() if programs is None else programs
    tree.programs(name for name in wanted if name != "python")
    for name in C_LIBRARY:
        if (library := Path("/") / LIBRARIES / name).exists():
            tree.add(library, f"{LIBRARIES}/{name}")
    if programs is None or "python" in programs:
        _python(tree)
    return tree


def bare_python(tree: Tree, prefix: str) -> str:
    """The interpreter of the testbed's environment below a folder, without packages; returns the program's name."""
    python = tiny_image.TESTBED_PYTHON.resolve()
    version = f"python{sysconfig.get_python_version()}"
    library = python.parent.parent / "lib" / version
    tree.add(python, f"{prefix}/bin/{version}")
    for name in ("python", "python3"):
        tree.link(f"{prefix}/bin/{name}", version)
    tree.libraries_of(python)
    tree.add(library, f"{prefix}/lib/{version}", leave_out=_LEFT_OUT)
    for extension in (library / "lib-dynload").glob("*.so"):
        tree.libraries_of(extension)
    return version


def _python(tree: Tree) -> None:
    """The testbed's environment with pytest, and the tiny package as if installed with `-e`."""
    version = bare_python(tree, TESTBED)
    tree.text(f"{CONDA}/bin/activate", ACTIVATE)
    tree.link(f"{CONDA}/bin/python", f"/{TESTBED}/bin/python")
    tree.text(f"{TESTBED}/bin/pytest", PYTEST, 0o755)
    installed = tiny_image.TESTBED_PYTHON.parent.parent / "lib" / version / "site-packages"
    packages = f"{TESTBED}/lib/{version}/site-packages"
    for entry in installed.iterdir():
        tree.add(entry, f"{packages}/{entry.name}")
    tree.text(f"{packages}/__editable__.widget-1.0.pth", "/testbed/src\n")


def clone(repository: Path, folder: Path) -> Path:
    """A clone as SWE-smith's images have it: `main` checked out, the tasks as branches of `origin`."""
    subprocess.run(
        [
            "git",
            "clone",
            "--quiet",
            "--no-hardlinks",
            "-o",
            "origin",
            "-b",
            "main",
            str(repository),
            str(folder),
        ],
        env={"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nonexistent"},
        check=True,
    )
    git(folder / ".git", "config", "core.logAllRefUpdates", "true")
    return folder


def import_image(daemon: Daemon, tree: Tree, name: str, *changes: str) -> str:
    """Load a tree as an image until the end of the session; returns its name."""
    with daemon.asked(f"import {name}"):
        daemon.api.import_image_from_data(
            tree.data(),
            repository=name,
            tag="latest",
            changes=["ENV PATH=/usr/local/bin:/usr/bin:/bin", _LABEL, *changes],
        )
        imported.add(daemon.image(name).id)
    return name


def load_image(daemon: Daemon, tree: Tree, name: str, architecture: str) -> str:
    """As `import_image`, for a processor of another kind."""
    layer = tree.data()
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [f"{name}:latest"], "Layers": ["layer.tar"]}]
    archive = Tree()
    archive.add_bytes("layer.tar", layer)
    archive.text("config.json", json.dumps(config))
    archive.text("manifest.json", json.dumps(manifest))
    with daemon.asked(f"load {name}"):
        list(daemon.api.load_image(archive.data()))
    imported.add(daemon.image(name).id)
    return name


def forget(daemon: Daemon, name: str) -> None:
    """Remove an image that the session imported."""
    with daemon.asked(f"remove {name}"):
        imported.discard(daemon.image(name).id)
        daemon.api.remove_image(name, force=True)


def testbed_tree(scratch: Path) -> Tree:
    """The tiny image, /testbed included."""
    local = scratch / "images" / image_key(tiny_image.IMAGE_NAME)
    if not local.exists():
        local = tiny_image.build(scratch / "images")
    if not (scratch / "clone").exists():
        clone(local / "repository.git", scratch / "clone")
    tree = base_tree()
    tree.add(scratch / "clone", "testbed")
    return tree


def build(daemon: Daemon, scratch: Path) -> str:
    """The tiny image as a Docker image; returns its name."""
    return import_image(daemon, testbed_tree(scratch), tiny_image.IMAGE_NAME)


def derive(daemon: Daemon, base: str, name: str, tree: Tree | None = None, *changes: str) -> str:
    """An image that has `base`, files of a tree over it, and changes of its configuration; quickly made."""
    with daemon.asked(f"derive {name}"):
        container = daemon.create(image=base)
        if tree is not None:
            daemon.api.put_archive(container, "/", tree.data())
        daemon.api.commit(container, repository=name, tag="latest", changes=list(changes))
        daemon.remove(container)
        imported.add(daemon.image(name).id)
    return name


def remove_imported(daemon: Daemon) -> None:
    """Remove what the session imported; an image that others were made of goes after these."""
    remove_images(daemon, imported)
    imported.clear()


def remove_images(daemon: Daemon, images: Iterable[str]) -> None:
    remaining = set(images)
    while remaining:
        kept = set()
        for image in remaining:
            try:
                daemon.api.remove_image(image, force=True)
            except NotFound:
                continue
            except APIError:
                kept.add(image)
        if kept == remaining:
            raise AssertionError(f"images cannot be removed: {kept}")
        remaining = kept
