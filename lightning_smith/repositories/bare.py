"""The repository that an image of SWE-smith's kind keeps at /testbed, wherever the image's files are read.

SWE-smith clones with `git clone -o origin`: its tasks are remote branches, `main` is checked out. The bare repository
that is made of it here has them as branches of its own, and nothing of the image's settings and hooks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_atomic
from lightning_smith.core.git import git
from lightning_smith.repositories.revisions import MAIN

TREE = "/testbed"
"""Where an image has its task's repository."""

GIT_FOLDER = f"{TREE}/.git"

_BRANCH = re.compile(r"refs/(?:heads|remotes/origin)/(.+)")
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def check_repository(has_folder: Callable[[str], bool], image_name: str) -> None:
    """UserError if there is no repository with refs that can be read at /testbed of an image."""
    if not has_folder(TREE):
        raise UserError(f"the image {image_name} has no {TREE}: it is no image of SWE-smith's kind")
    if not (has_folder(GIT_FOLDER) and has_folder(f"{GIT_FOLDER}/refs")):
        raise UserError(
            f"{TREE} in the image {image_name} is no git repository: it is no image of SWE-smith's kind"
        )
    if has_folder(f"{GIT_FOLDER}/reftable"):
        raise UserError(
            f"the repository at {TREE} in the image {image_name} keeps its branches as a reftable, which is "
            "not read: build the image with `git init --ref-format=files`"
        )


def make_bare(source: Path, target: Path, image_name: str, *, move: bool) -> None:
    """Make a bare repository with every branch of the git folder `source`, and nothing else of its settings.

    With `move` the objects are taken out of `source`, else `target` reads them where they are.
    """
    objects = source / "objects"
    if (objects / "info/alternates").exists() or not objects.is_dir():
        raise UserError(f"the repository at {TREE} in {image_name} lacks its objects: build the image again")
    found = heads(source)
    git(None, "init", "--quiet", "--bare", "--template=", f"--initial-branch={MAIN}", str(target.absolute()))
    if move:
        shutil.rmtree(target / "objects")
        objects.rename(target / "objects")
    else:
        write_atomic(target / "objects/info/alternates", f"{objects.absolute()}\n")
    found[MAIN] = _resolve_head(source, found, image_name)
    lines = (f"{commit} refs/heads/{name}\n" for name, commit in sorted(found.items()))
    write_atomic(target / "packed-refs", "# pack-refs with: sorted \n" + "".join(lines))


def heads(folder: Path) -> dict[str, str]:
    """Return the commit of every branch of a git directory, local and of `origin`; a local one wins.

    Loose references win over packed ones; symbolic ones (origin/HEAD) are no branches.
    """
    references: dict[str, str] = {}
    packed = folder / "packed-refs"
    if packed.is_file():
        for line in packed.read_text(errors="surrogateescape").splitlines():
            commit, _, name = line.partition(" ")
            if _HASH.fullmatch(commit):
                references[name] = commit
    for path in sorted((folder / "refs").rglob("*")):
        if path.is_file() and _HASH.fullmatch(commit := path.read_text(errors="replace").strip()):
            references[str(path.relative_to(folder))] = commit
    found: dict[str, str] = {}
    for name, commit in sorted(references.items(), reverse=True):  # remotes first, heads over them
        if match := _BRANCH.fullmatch(name):
            found[match[1]] = commit
    return found


def _resolve_head(folder: Path, found: dict[str, str], image_name: str) -> str:
    """Return the commit that the image has checked out."""
    head = (folder / "HEAD").read_text(errors="replace").strip()
    commit = found.get(head.removeprefix("ref: refs/heads/"), head)
    if not _HASH.fullmatch(commit):
        raise UserError(
            f"the repository at {TREE} in the image {image_name} has no commit checked out ({head})"
        )
    return commit
