"""Local images: the repository, checkouts, byte code, and what a user's git configuration may not change."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.git import git
from lightning_smith.miniature.repositories import ImageRecipe, TaskBranch, build_image
from lightning_smith.repositories.branches import LocalBranches, read_branches, write_branches
from lightning_smith.repositories.catalogue import ImageCatalogue, image_files
from lightning_smith.repositories.local import LocalImage, branch_heads
from lightning_smith.repositories.tree_files import read_sdist

NAME = "swesmith/swesmith.x86_64.pypi_1776_widget.0badcafe"
KEY = "swesmith.x86_64.pypi_1776_widget.0badcafe"
BUG = "pypi__widget.0badcafe.func_pm_op_change__00000001"
PYTHON = Path(sys.executable)

FILES: dict[str, tuple[bytes, int]] = {
    "pkg/__init__.py": (b"", 0o644),
    "pkg/core.py": (b"def add(a, b):\n    return a + b\n", 0o644),
    "pkg/crlf.py": (b"X = 1\r\nY = 2\r\n", 0o644),
    "pkg/latin.py": (b"# -*- coding: latin-1 -*-\nNAME = '\xe9'\n", 0o644),
    "pkg/na\u00efve mod.py": (b"Z = 3\n", 0o644),
    "pkg/bad.py": (b"def (:\n", 0o644),
    "bin/run me.sh": (b"#!/bin/sh\nexit 0\n", 0o755),
    "data/blob.bin": (bytes(range(256)), 0o644),
    "tests/test_core.py": (
        b"from pkg.core import add\n\ndef test_add():\n    assert add(1, 2) == 3\n",
        0o644,
    ),
    "tests/only/test_more.py": (b"def test_more():\n    pass\n", 0o644),
    ".gitattributes": (b"*.py text eol=lf filter=upper diff=shout\n", 0o644),
}


def make_sdist(path: Path, files: dict[str, tuple[bytes, int]], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, (data, mode) in files.items():
            member = tarfile.TarInfo(f"widget-1.0/{name}")
            member.size, member.mode = len(data), mode
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(f"widget-1.0/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return path


def recipe(sdist: Path, **changes: object) -> ImageRecipe:
    from lightning_smith.core.files import sha256_file

    branches = (
        TaskBranch(
            BUG,
            {"pkg/core.py": b"def add(a, b):\n    return a - b\n", "pkg/crlf.py": b"X = 1\r\nY = 3\r\n"},
            ("tests/test_core.py", "tests/only/test_more.py"),
        ),
        TaskBranch(
            "pypi__widget.0badcafe.other__2", {"pkg/latin.py": b"NAME = '\xff'\n"}, ("tests/test_core.py",)
        ),
    )
    values = {
        "image_name": NAME,
        "package": "widget",
        "version": "1.0",
        "sdist": sdist,
        "sdist_sha256": sha256_file(sdist),
        "pythonpath": ".",
        "branches": branches,
    }
    return ImageRecipe(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An images folder with one image, below a path with a blank and an é."""
    root = tmp_path_factory.mktemp("im ages é")
    sdist = make_sdist(root / "widget-1.0.tar.gz", FILES, {"pkg/alias.py": "core.py"})
    build_image(root / KEY, recipe(sdist), PYTHON)
    return root


@pytest.fixture(scope="module")
def image(folder: Path) -> LocalImage:
    return LocalImage.open(folder / KEY)


def snapshot(root: Path) -> dict[str, tuple[str, bytes]]:
    """Every file below `root` but byte code: kind and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if "__pycache__" in name:
            continue
        if path.is_symlink():
            found[name] = ("link", os.fsencode(path.readlink()))
        elif path.is_file():
            found[name] = ("x" if path.stat().st_mode & stat.S_IXUSR else "-", path.read_bytes())
        else:
            found[name] = ("dir", b"")
    return found


def archived(image: LocalImage, revision: str, into: Path) -> dict[str, tuple[str, bytes]]:
    """The same by `git archive`, with the attributes of the tree itself switched off."""
    info = image.repository / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text("* -text -filter -diff -export-subst -export-ignore\n")
    into.mkdir()
    data = git(image.repository, "archive", image.commit(revision))
    subprocess.run(["tar", "x", "-C", str(into)], input=data, check=True)
    (info / "attributes").unlink()
    return snapshot(into)


@pytest.mark.parametrize("revision", ["main", BUG, f"{BUG}~1", f"{BUG}~2", "pypi__widget.0badcafe.other__2"])
@pytest.mark.parametrize("pyc", [True, False])
def test_a_checkout_is_what_git_archives(image: LocalImage, tmp_path: Path, revision: str, pyc: bool) -> None:
    image.checkout(revision, tmp_path / "a" / "check out", pyc=pyc)
    assert snapshot(tmp_path / "a" / "check out") == archived(image, revision, tmp_path / "b")


def test_main_holds_the_bytes_of_the_sdist(image: LocalImage, tmp_path: Path) -> None:
    image.checkout("main", tmp_path / "t")
    for name, (data, mode) in FILES.items():
        assert (tmp_path / "t" / name).read_bytes() == data
        assert (tmp_path / "t" / name).stat().st_mode & 0o777 == mode
        assert image.file_at("main", name) == data
    assert (tmp_path / "t" / "pkg/alias.py").readlink() == Path("core.py")


def test_branches_and_the_two_commits_of_a_task(image: LocalImage, tmp_path: Path) -> None:
    assert image.branches() == {BUG, "pypi__widget.0badcafe.other__2"}
    log = git(image.repository, "log", "--format=%s", BUG).decode().splitlines()
    assert log == ["Remove F2P Tests", "Bug Patch", "Initial commit"]
    image.checkout(BUG, tmp_path / "agent")
    image.checkout(f"{BUG}~1", tmp_path / "grader")
    assert not (tmp_path / "agent/tests").exists()
    assert (tmp_path / "grader/tests/only/test_more.py").exists()
    for tree in ("agent", "grader"):
        assert b"a - b" in (tmp_path / tree / "pkg/core.py").read_bytes()
    with pytest.raises(UserError, match=r"has no file tests/test_core.py"):
        image.file_at(BUG, "tests/test_core.py")
    with pytest.raises(UserError, match="has no branch or commit nothing"):
        image.checkout("nothing", tmp_path / "none")


def test_byte_code_beside_unchanged_files_only(image: LocalImage, tmp_path: Path) -> None:
    image.checkout(f"{BUG}~1", tmp_path / "t")
    kept = {path.name.split(".")[0] for path in (tmp_path / "t/pkg/__pycache__").iterdir()}
    assert kept == {"__init__", "latin", "na\u00efve mod", "alias"}
    image.checkout(BUG, tmp_path / "plain", pyc=False)
    assert not list((tmp_path / "plain").rglob("__pycache__"))


def test_stale_byte_code_is_not_run(image: LocalImage, tmp_path: Path) -> None:
    """An edit of the same length and time, with the byte code of the old source still there."""
    tree = tmp_path / "t"
    image.checkout("main", tree)
    source = tree / "pkg/core.py"
    before = source.stat()
    source.write_bytes(source.read_bytes().replace(b" + ", b" - "))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Path(importlib.util.cache_from_source(str(source))).exists()
    code = "import sys; sys.path.insert(0, '.'); from pkg.core import add; print(add(5, 3))"
    done = subprocess.run([PYTHON, "-B", "-c", code], cwd=tree, capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


def test_the_user_configuration_has_no_say(
    folder: Path, image: LocalImage, tmp_path: Path, monkeypatch
) -> None:
    """Building under a hostile configuration gives the same commits, and none of its programs runs."""
    ran = tmp_path / "ran"
    config = tmp_path / "gitconfig"
    config.write_text(
        f"[user]\n name = x\n[core]\n autocrlf = true\n hooksPath = {tmp_path}\n[commit]\n gpgSign = true\n"
        f'[init]\n templateDir = /nonexistent\n\n[filter "upper"]\n clean = touch {ran}\n'
        f" smudge = touch {ran}\n[diff]\n external = touch {ran}\n noprefix = true\n"
    )
    for name, value in {
        "GIT_CONFIG_GLOBAL": str(config),
        "HOME": str(tmp_path),
        "GIT_DIR": "/nonexistent",
        "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "someone",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.quotePath",
        "GIT_CONFIG_VALUE_0": "true",
        "TZ": "Asia/Tokyo",
    }.items():
        monkeypatch.setenv(name, value)
    build_image(tmp_path / KEY, recipe(folder / "widget-1.0.tar.gz"), PYTHON)
    again = LocalImage.open(tmp_path / KEY)
    assert branch_heads(again.repository) == branch_heads(image.repository)
    assert again.digest == image.digest
    again.checkout(BUG, tmp_path / "t")
    image.checkout(BUG, tmp_path / "u")
    assert snapshot(tmp_path / "t") == snapshot(tmp_path / "u")
    assert not ran.exists()


def test_building_over_an_old_image_and_over_a_killed_run(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / KEY
    (tmp_path / f".{KEY}.building/tree").mkdir(parents=True)
    (target / "tree").mkdir(parents=True)
    (target / "tree/leftover.py").write_text("")
    with pytest.raises(UserError, match="there is no image at"):
        LocalImage.open(target)
    build_image(target, recipe(folder / "widget-1.0.tar.gz"), PYTHON)
    LocalImage.open(target).verify()
    assert not (target / "tree/leftover.py").exists()
    assert [path.name for path in tmp_path.iterdir()] == [KEY]


def test_a_folder_that_becomes_a_file_and_back(tmp_path: Path) -> None:
    """Checkout of a commit in which a path changed its kind."""
    sdist = make_sdist(tmp_path / "w.tar.gz", FILES, {"pkg/alias.py": "core.py"})
    build_image(tmp_path / KEY, recipe(sdist, branches=()), PYTHON)
    image = LocalImage.open(tmp_path / KEY)
    stream = (
        b"commit refs/heads/odd\ncommitter a <a@b> 0 +0000\ndata 1\nx\nfrom refs/heads/main\n"
        b"D tests\nM 100755 inline tests\ndata 2\nhi\n"
        b"D bin\nM 120000 inline bin\ndata 3\npkg\n"
        b"M 100644 inline pkg/alias.py\ndata 2\ny\n\n"
        b"M 100755 inline pkg/core.py\ndata 2\nz\n\n"
        b"M 120000 inline pkg/crlf.py\ndata 7\ncore.py\n"
        b"D data/blob.bin\nM 100644 inline data/blob.bin/inner\ndata 1\nq\n"
    )
    git(image.repository, "fast-import", "--quiet", stdin=stream)
    image.checkout("odd", tmp_path / "t")
    assert snapshot(tmp_path / "t") == archived(image, "odd", tmp_path / "u")
    assert (tmp_path / "t/tests").read_bytes() == b"hi"


def test_what_cannot_be_built_is_told(tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path / "w.tar.gz", FILES)
    for branch, message in [
        (TaskBranch("i", {"pkg/none.py": b""}, ()), "lacks pkg/none.py"),
        (TaskBranch("i", {"pkg/core.py": FILES["pkg/core.py"][0]}, ()), "its bug is none"),
        (TaskBranch("i", {"pkg/core.py": b"x"}, ("pkg/core.py",)), "holds one of its FAIL_TO_PASS tests"),
    ]:
        with pytest.raises(UserError, match=message):
            build_image(tmp_path / KEY, recipe(sdist, branches=(branch,)), PYTHON)
    with pytest.raises(UserError, match=r"has sha256 .* instead of 000"):
        build_image(tmp_path / KEY, recipe(sdist, sdist_sha256="0" * 64), PYTHON)
    with pytest.raises(UserError, match="does not run"):
        build_image(tmp_path / KEY, recipe(sdist), tmp_path / "no python")
    assert not (tmp_path / KEY / "image.json").exists()


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../../evil", ".git/config", "sub/.GIT/hooks/x"]
)
def test_an_sdist_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "w.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(name if name.startswith(("/", "..")) else f"widget-1.0/{name}")
        archive.addfile(member, io.BytesIO())
    with pytest.raises(UserError, match=r"w\.tar\.gz holds"):
        read_sdist(tmp_path / "w.tar.gz")


def test_links_out_damage_and_absence_are_refused(tmp_path: Path) -> None:
    path = make_sdist(tmp_path / "w.tar.gz", {"a.py": (b"x", 0o644)}, {"sub/link": "../../etc/passwd"})
    with pytest.raises(UserError, match="leads out of the source tree"):
        read_sdist(path)
    path = make_sdist(tmp_path / "v.tar.gz", FILES)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="not a readable sdist"):
        read_sdist(path)
    with pytest.raises(UserError, match="does not exist"):
        read_sdist(tmp_path / "absent.tar.gz")


def test_the_catalogue_finds_an_image_by_its_name(folder: Path) -> None:
    catalogue = ImageCatalogue(folder)
    assert catalogue[NAME] is catalogue[NAME]
    assert catalogue[f"{NAME}:latest"].digest == catalogue[NAME].digest
    with pytest.raises(UserError, match=r"holds the image swesmith/.*, not other/"):
        catalogue[NAME.replace("swesmith/", "other/", 1)]
    with pytest.raises(UserError, match="there is no image at"):
        catalogue["swesmith/absent"]
    assert [image.image_name for image in catalogue] == [NAME]


def test_branch_lists_are_written_and_read_back(folder: Path, image: LocalImage, tmp_path: Path) -> None:
    out = tmp_path / "branches" / f"{KEY}.json"
    write_branches(LocalBranches(folder).list_branches(KEY), out)
    first = out.read_bytes()
    write_branches(LocalBranches(folder).list_branches(NAME), out)
    assert out.read_bytes() == first
    assert read_branches([out]) == {NAME: image.branches()}
    with pytest.raises(UserError, match="a second time"):
        read_branches([out, out])
    for text in ("[]", '{"image_name": "x", "branches": "abc"}', '{"image_name": 1, "branches": []}'):
        out.write_text(text)
        with pytest.raises(UserError, match="is not a list of branches"):
            read_branches([out])


def test_an_image_whose_repository_is_gone_is_told(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / KEY, tmp_path / KEY)
    shutil.rmtree(tmp_path / KEY / "repository.git")
    with pytest.raises(
        UserError, match=rf"repository of the image .*{KEY} cannot be read .*: build it again"
    ):
        LocalBranches(tmp_path).list_branches(KEY)


def test_the_images_of_ones_own_release_are_all_there(folder: Path) -> None:
    assert image_files(folder, {KEY: NAME}) == [folder / KEY / "image.json"]
    with pytest.raises(
        UserError, match="1 of 2 images of the release have no git repository on disk, the first is b/x"
    ):
        image_files(folder, {KEY: NAME, "x": "b/x"})


def test_a_repository_that_changed_since_is_told(folder: Path, tmp_path: Path) -> None:
    build_image(tmp_path / KEY, recipe(folder / "widget-1.0.tar.gz"), PYTHON)
    git(tmp_path / KEY / "repository.git", "branch", "-D", BUG)
    with pytest.raises(UserError, match=r"has digest sha256:.* instead of sha256:"):
        LocalBranches(tmp_path).list_branches(NAME)
