"""Tasks, repositories and patches as nobody wants them: each gets a named outcome, no traceback and no reward."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import tiny_image

from lightning_smith.agent.chat import ScriptedModel
from lightning_smith.agent.loop import SUBMIT_COMMAND
from lightning_smith.agent.rollout import Request, Rollout, Stage, run_rollout
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.contracts.outcome import Outcome
from lightning_smith.core.files import sha256_file
from lightning_smith.grading.grader import run_tests
from lightning_smith.grading.store import GradeStore
from lightning_smith.grading.verdict import decide
from lightning_smith.miniature.repositories import ImageRecipe, TaskBranch, build_image
from lightning_smith.repositories.names import image_key

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]


ODD_TESTS = """import pytest
from gadget import twice


@pytest.mark.parametrize("text", ["a b", "[x] - y", "PASSED z", "\u00e9 \\" '", "t\\tb"])
def test_twice(text):
    assert twice(text) == text + text
"""
FILES = {
    "gadget.py": "def twice(text):\n    return text + text\n",
    "tests/test gadget.py": ODD_TESTS,
    "docs/na\u00efve \u00ab1\u00bb.txt": "caf\u00e9\r\n",
    "crlf.txt": "one\r\ntwo\r\n",
    ".gitmodules": '[submodule "vendor"]\n\tpath = vendor\n\turl = https://example.org/vendor.git\n',
    ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n* text=auto eol=crlf\n",
    "data/model.bin": (
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
    ),
}
IMAGE_NAME = "swesmith/swesmith.x86_64.pypi_1776_gadget.0ddc0ffe"
TASK = "pypi__gadget.0ddc0ffe.func_pm_remove__00000001"
IDS = [
    f"tests/test gadget.py::test_twice[{name}]"
    for name in ("a b", "[x] - y", "PASSED z", "\\xe9 \" '", "t\\tb")
]
FIX = "printf 'def twice(text):\\n    return text + text\\n' > gadget.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of the tiny package, and of one that has everything that upsets tools."""
    folder = tmp_path_factory.mktemp("bad")
    tiny_image.build(folder / "images")
    sdist = folder / "gadget-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in FILES.items():
            member = tarfile.TarInfo(f"gadget-1.0/{name}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    recipe = ImageRecipe(
        image_name=IMAGE_NAME,
        package="gadget",
        version="1.0",
        sdist=sdist,
        sdist_sha256=sha256_file(sdist),
        pythonpath=".",
        branches=(
            TaskBranch(
                TASK, {"gadget.py": b"def twice(text):\n    return text\n"}, ("tests/test gadget.py",)
            ),
        ),
    )
    build_image(folder / "images" / image_key(IMAGE_NAME), recipe, tiny_image.TESTBED_PYTHON)
    return folder


def roll_out(folder: Path, row: dict[str, Any], *commands: str) -> Rollout:
    """A rollout of a task whose policy sends these commands and submits."""
    settings = StageSettings(
        tasks=tiny_image.write_tasks(folder / "tasks.jsonl", row),
        images=folder / "images",
        model="policy",
        agent=AgentSettings.from_dict(tiny_image.AGENT),
    )
    replies = [f"```bash\n{command}\n```" for command in (*commands, SUBMIT_COMMAND)]
    return run_rollout(Stage(settings), Request(row["instance_id"], 0, 7, True), ScriptedModel(replies))


def odd_row(**changes: Any) -> dict[str, Any]:
    row = tiny_image.row(instance_id=TASK, image_name=IMAGE_NAME, FAIL_TO_PASS=IDS, PASS_TO_PASS=[])
    return row | changes


@pytest.mark.parametrize(
    ("changes", "outcome", "words"),
    [
        ({"instance_id": "pypi__widget.0badcafe.gone__1"}, Outcome.INFRA, "has no branch or commit"),
        ({"FAIL_TO_PASS": [], "PASS_TO_PASS": []}, Outcome.GRADER_ERROR, "has no FAIL_TO_PASS test"),
        ({"FAIL_TO_PASS": ["tests/test_core.py::test_gone"]}, Outcome.UNSOLVED, ""),
        ({"FAIL_TO_PASS": ["no such file"]}, Outcome.GRADER_ERROR, "lacks no such file"),
        ({"FAIL_TO_PASS": ["../../etc/passwd::test_x"]}, Outcome.GRADER_ERROR, "lacks ../../etc/passwd"),
        ({"FAIL_TO_PASS": ["-p evil::test_x"]}, Outcome.GRADER_ERROR, "lacks -p evil"),
    ],
    ids=["branch gone", "no tests", "no such test", "no such file", "path out of the tree", "option"],
)
def test_tasks(
    folder: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any], outcome: Outcome, words: str
) -> None:
    record = roll_out(folder, tiny_image.row(**changes), tiny_image.FIX).record
    assert record.outcome is outcome and not record.reward and words in (record.error or "")
    assert (record.reward is None) is (outcome is not Outcome.UNSOLVED)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_odd_ids_and_a_repository_of_odd_files(folder: Path) -> None:
    """Ids with brackets, blanks and quotes; submodules, LFS pointers, attributes and CR LF in the tree."""
    fixed = roll_out(folder, odd_row(), FIX, "printf 'one\\r\\n2\\r\\n' > crlf.txt; rm data/model.bin")
    assert fixed.record.outcome is Outcome.SOLVED, fixed.record.error
    assert b"-two\r\n+2\r\n" in fixed.patch and b"deleted file mode 100644" in fixed.patch
    assert roll_out(folder, odd_row(), "echo >> gadget.py").record.outcome is Outcome.UNSOLVED
    cut = [test.split(" ")[0] for test in IDS]
    assert roll_out(folder, odd_row(FAIL_TO_PASS=cut), FIX).record.reward in (None, 0)


ODD_NAMES = r"""
import os
names = "a b.txt", "quo\"te's.txt", "new\nline.txt", "caf\u00e9.txt", "\u202e.txt", "-rf", "tab\t.txt", "back\\slash"
for name in names:
    os.makedirs("odd/" + name + ".d", exist_ok=True)
    for path in ("odd/" + name, "odd/" + name + ".d/" + name):
        with open(path, "w", newline="") as file:
            file.write("x\r\ny\n")
open("odd/nul.bin", "wb").write(bytes(range(256)) * 40)
"""


def test_odd_paths_and_binary_files(folder: Path) -> None:
    make = f"python3 - <<'END'\n{ODD_NAMES}END"
    fixed = roll_out(folder, odd_row(), make, FIX)
    assert fixed.record.outcome is Outcome.SOLVED, fixed.record.error
    assert fixed.left_out == {"bad path": 2} and b"GIT binary patch" in fixed.patch
    assert roll_out(folder, odd_row(), make).record.outcome is Outcome.UNSOLVED


def test_a_patch_that_deletes_the_package(folder: Path) -> None:
    for command in ("rm -r src", "rm -rf /testbed/* /testbed/.[a-z]*", "rm -r src && echo x > src"):
        record = roll_out(folder, tiny_image.row(), command).record
        assert (record.outcome, record.reward) == (Outcome.UNSOLVED, 0.0), record.error


def test_patches_of_a_hundred_megabytes(folder: Path, tmp_path: Path) -> None:
    """The harness makes none; one from outside is graded, or named as too large to be."""
    made = roll_out(folder, tiny_image.row(), "for n in 1 2 3 4; do yes $n | head -c 26000000 > f$n; done")
    assert (made.record.outcome, made.record.reward, made.patch) == (Outcome.UNSOLVED, 0.0, b"")
    assert "more than 10,000,000 bytes" in (made.record.error or "")
    line = b"+" + b"x" * 98 + b"\n"
    head = b"diff --git a/big b/big\nnew file mode 100644\n--- /dev/null\n+++ b/big\n@@ -0,0 +1,1000000 @@\n"
    assert foreign(folder, tmp_path, head + line * 1_000_000) is Outcome.UNSOLVED


def foreign(folder: Path, store: Path, patch: bytes) -> Outcome:
    """Outcome of a patch that no workspace made."""
    settings = StageSettings(
        tasks=tiny_image.write_tasks(folder / "tasks.jsonl", tiny_image.row()),
        images=folder / "images",
        model="policy",
        agent=AgentSettings.from_dict(tiny_image.AGENT),
    )
    stage = Stage(settings)
    task = stage.tasks[tiny_image.TASK]
    image = stage.room.image(task.image_name)
    return decide(task, run_tests(task, image, patch, GradeStore(store), stage.room.sandbox, timeout_s=60))


@pytest.mark.parametrize(
    "patch",
    [
        b"not a patch\n",
        b"\x00\xff" * 1000,
        b"diff --git a/x b/x\n",
        b"diff --git a/README b/README\n--- a/README\n+++ b/README\n@@ -1 +1 @@\n",
        b"diff --git a/x b/x\nnew file mode 100644\nGIT binary patch\nliteral 999999\nzc$@x\n\n",
        b"--- a/src/widget/core.py\r\n+++ b/src/widget/core.py\r\n@@ -1,2 +1,2 @@\r\n-x\r\n+y\r\n",
        b'diff --git "a/x\\\\777" "b/x\\\\400"\n--- /dev/null\n+++ "b/x\\\\400"\n@@ -0,0 +1 @@\n+x\n',
        b"diff --git a/x b/x\nnew file mode 100644\nindex 0..1\nBinary files /dev/null and b/x differ\n",
    ],
    ids=["text", "bytes", "header", "empty hunk", "cut binary", "CR LF", "octal", "stub"],
)
def test_patches_that_are_none(folder: Path, tmp_path: Path, patch: bytes) -> None:
    assert foreign(folder, tmp_path, patch) is Outcome.UNSOLVED
