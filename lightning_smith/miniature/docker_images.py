"""Docker images of the miniature's repositories, of SWE-smith's layout, made from their git repositories on disk.

    about = Builder(daemon, base, Path("envs/testbed/.venv"), folder).build(LocalImage.open(image_folder))

Three parts, of which all images share the first two:

- a base image that the configuration names, with bash, git and the Python that the testbed was locked for;
- `/opt/miniconda3` with the environment `testbed`: the base's Python and the packages of envs/testbed, copied from
  where uv installed them, and root's `.bashrc`, which activates it;
- `/testbed`, a clone with the tasks as branches of `origin`, importable as if installed with `pip install -e`.

Nothing is fetched while an image is built, and nothing of a repository is run. How its tests are run is a label of the
image.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import hash_json
from lightning_smith.core.git import git
from lightning_smith.core.process import stage_lock
from lightning_smith.images.daemon import LABEL, Daemon, DockerError, FoundImage
from lightning_smith.images.docker import TEST_COMMAND_LABEL
from lightning_smith.images.layer import write_tar
from lightning_smith.images.pull import image_at
from lightning_smith.repositories.bare import TREE
from lightning_smith.repositories.local import LocalImage
from lightning_smith.repositories.names import ImageRef
from lightning_smith.repositories.revisions import MAIN

CONDA = "/opt/miniconda3"
ENVIRONMENT = f"{CONDA}/envs/testbed"

SOURCE_LABEL = f"{LABEL}.source"
"""Label with the digest of the repository that an image was made from."""

_BUILD_WAIT_S = 900.0
_ACTIVATE = f"""\
export CONDA_PREFIX={ENVIRONMENT} CONDA_DEFAULT_ENV=testbed
export PATH={ENVIRONMENT}/bin:{CONDA}/condabin:$PATH
conda() {{ :; }}
"""
_BASHRC = f"source {CONDA}/bin/activate testbed\n"
_PYTEST = f"#!{ENVIRONMENT}/bin/python\nimport sys\nimport pytest\nsys.exit(pytest.main())\n"

# Byte code is compiled here once: commands and tests write none, and would compile the same at every start.
_MAKE_TESTBED = f"""\
for program in bash git python3; do
    command -v $program >/dev/null || {{ echo "it has no $program"; exit 1; }}
done
found=$(python3 -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
[ "$found" = "$1" ] || {{ echo "its python3 is $found and the testbed was locked for $1"; exit 1; }}
python3 -m venv --without-pip --symlinks {ENVIRONMENT} || exit
ln -s {ENVIRONMENT}/bin/python {CONDA}/bin/python
library=$(python3 -c 'import os; print(os.path.dirname(os.__file__))')
{ENVIRONMENT}/bin/python -m compileall -q -x '/(test|tests|idlelib|lib2to3|site-packages|dist-packages)/' "$library"
{ENVIRONMENT}/bin/python -m compileall -q {ENVIRONMENT}/lib/$1/site-packages
rm "$0"
"""
_SCRIPT = "/make_testbed.sh"

_LEFT_OUT = shutil.ignore_patterns("__pycache__", "_virtualenv*", "RECORD", "REQUESTED")
_NATIVE = re.compile(r"\.(so|pyd|dylib)(\.|$)")
_NOISE = re.compile(r"Step \d+/\d+ : | ---> |Removing intermediate|Successfully |\x1b\[")


@dataclass(frozen=True)
class Builder:
    """Makes the images of several repositories; several processes may do so at a time."""

    daemon: Daemon
    base: FoundImage
    testbed: Path
    """The uv environment of envs/testbed."""
    folder: Path
    """Where its lock lies."""

    def build(self, local: LocalImage) -> dict[str, Any]:
        """Make the image `<image name>:latest` and say what it is; UserError says why it cannot be made."""
        local.verify()
        stage = self._stage()
        tag = f"{ImageRef.parse(local.image_name).repository}:latest"
        with tempfile.TemporaryDirectory() as scratch:
            context = Path(scratch) / "context"
            self._write_repository(local, context / "root")
            labels = {
                TEST_COMMAND_LABEL: json.dumps(local.test_command),
                SOURCE_LABEL: local.digest,
            }
            lines = [f"FROM {stage}", "COPY root/ /", f"WORKDIR {TREE}"]
            image_id = self._docker_build(context, lines, tag, labels, f"build {tag}")
        return {
            "image_name": local.image_name,
            "source": local.digest,
            "base": {"name": self.base.name, "id": self.base.id, "digest": self.base.digest},
            "testbed": stage,
            "image": {"id": image_id, "tags": [tag]},
        }

    def _stage(self) -> str:
        """Name of the image of base and testbed, made if the daemon lacks it."""
        with tempfile.TemporaryDirectory() as scratch:
            context = Path(scratch) / "context"
            python = self._write_testbed(context / "root")
            lines = [f"FROM {self.base.name}", "COPY root/ /", f"RUN sh {_SCRIPT} {python}"]
            files = write_tar(context, Path(scratch) / "files.tar")
            name = f"{LABEL}/testbed:{hash_json([self.base.id, files, lines])[:12]}"
            with stage_lock(self.folder, "testbed image", wait_s=_BUILD_WAIT_S):
                if image_at(self.daemon, name) is None:
                    what = f"make the testbed from the base image {self.base.name}"
                    self._docker_build(context, lines, name, {}, what)
        return name

    def _write_testbed(self, root: Path) -> str:
        """Write the files of the environment; returns the name of its Python, `python3.12`."""
        found = sorted(self.testbed.glob("lib/python3.*/site-packages"))
        if not found:
            raise UserError(
                f"{self.testbed} is no environment: make it (uv sync --frozen --project envs/testbed)"
            )
        packages, python = found[0], found[0].parent.name
        if native := [path for path in packages.rglob("*") if _NATIVE.search(path.name)]:
            raise UserError(
                f"{native[0]} is machine code, which may not run in the base image: lock without it"
            )
        shutil.copytree(packages, _below(root, f"{ENVIRONMENT}/lib/{python}/site-packages"), ignore=_LEFT_OUT)
        texts = {f"{CONDA}/bin/activate": _ACTIVATE, "/root/.bashrc": _BASHRC, _SCRIPT: _MAKE_TESTBED}
        for name, text in texts.items():
            _below(root, name).write_text(text)
        program = _below(root, f"{ENVIRONMENT}/bin/pytest")
        program.write_text(_PYTEST)
        program.chmod(0o755)
        return python

    def _write_repository(self, local: LocalImage, root: Path) -> None:
        tree = _below(root, TREE)
        source = str(local.repository.absolute())
        git(None, "clone", "--quiet", "--no-hardlinks", "--template=", "--branch", MAIN, source, str(tree))
        # Nothing tells of the machine that made it: an index without inodes and times, no log, no path.
        (tree / ".git/index").unlink()
        git(tree / ".git", "read-tree", MAIN)
        shutil.rmtree(tree / ".git/logs", ignore_errors=True)
        git(tree / ".git", "config", "remote.origin.url", f"https://example.invalid/{local.folder.name}.git")
        (packages,) = self.testbed.glob("lib/python3.*/site-packages")
        paths = [f"{TREE}/{part}".rstrip("/.") for part in local.pythonpath.split(":")]
        name = f"{ENVIRONMENT}/lib/{packages.parent.name}/site-packages/__editable__.{local.package}.pth"
        _below(root, name).write_text("".join(f"{path}\n" for path in paths))

    def _docker_build(
        self, context: Path, lines: list[str], tag: str, labels: dict[str, str], what: str
    ) -> str:
        (context / "Dockerfile").write_text("\n".join([*lines, ""]))
        archive = context.with_suffix(".tar")
        write_tar(context, archive)
        with archive.open("rb") as file, self.daemon.asked(what):
            events = list(
                self.daemon.api.build(
                    fileobj=file, custom_context=True, tag=tag, labels=labels, decode=True, rm=True, forcerm=True,
                    network_mode="none", use_config_proxy=False,
                )
            )  # fmt: skip
        said = [line for event in events for line in event.get("stream", "").splitlines() if line.strip()]
        for event in events:
            if text := event.get("error"):
                last = [line for line in said if not _NOISE.match(line)][-1:]
                raise UserError(f"Docker could not {what}: {': '.join([text, *last])}")
        image_id = image_at(self.daemon, tag)
        if image_id is None:
            raise DockerError(f"Docker said that it built {tag} and has none: see the daemon's log")
        return image_id


def _below(root: Path, name: str) -> Path:
    """Return a place below `root`, whose folder is made."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
