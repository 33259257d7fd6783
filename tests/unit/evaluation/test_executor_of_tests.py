"""The sandbox leaves what the official runner would: same tree after the patch, same log, nothing else."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from outer_repository import InRepository

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.executor import SandboxExecutor
from lightning_smith.evaluation.harness import Answer, Execution, ExecutionError
from lightning_smith.grading.store import GradeStore
from lightning_smith.sandbox.bwrap import Bwrap

pytestmark = pytest.mark.e2e

MERGE = """def merge(a, b):
    if not a:
        return b
    else:
        # replace
        check(a, b)
        result = a | b
        return result


def check(a, b):
    assert isinstance(a, dict) and isinstance(b, dict)
"""
FILES = {"merge.py": MERGE, "crlf.py": "x = 1\r\ny = 2\r\n", "notes.txt": "one\ntwo\nthree\nfour\nfive\n"}

HEAD = "diff --git a/merge.py b/merge.py\n--- a/merge.py\n+++ b/merge.py\n"
BLANK_END = (
    f"{HEAD}@@ -4,7 +4,8 @@ def merge(a, b):\n     else:\n         # replace\n         check(a, b)\n"
    "-        result = a | b\n+        result = a.copy()\n+        result.update(b)\n"
    "         return result\n \n \n"
)
BLANK_END_SHA256 = "ebeb6ea3e9fcf5a4f9c893db37d944aaab339d913e6ba41088dde280d07af65f"
PATCHES = {
    "clean": BLANK_END,
    "stripped": BLANK_END.rstrip() + "\n",
    "drifted context": BLANK_END.replace("# replace", "# merge"),
    "first hunk fits, second does not": (
        f"{HEAD}@@ -1,3 +1,3 @@\n-def merge(a, b):\n+def merge(b, a):\n     if not a:\n         return b\n"
        "@@ -7,2 +7,2 @@\n-        nothing = like(this)\n+        result = b\n         return nothing\n"
    ),
    "already applied": f"{HEAD}@@ -1,2 +1,2 @@\n-def union(a, b):\n+def merge(a, b):\n     if not a:\n",
    "new file": (
        "diff --git a/new.py b/new.py\nnew file mode 100755\n--- /dev/null\n+++ b/new.py\n"
        "@@ -0,0 +1 @@\n+x = 1\n"
    ),
    "file that exists already": (
        "diff --git a/notes.txt b/notes.txt\nnew file mode 100644\n--- /dev/null\n+++ b/notes.txt\n"
        "@@ -0,0 +1 @@\n+x\n"
    ),
    "deletion": (
        "diff --git a/notes.txt b/notes.txt\ndeleted file mode 100644\n--- a/notes.txt\n+++ /dev/null\n"
        "@@ -1,5 +0,0 @@\n-one\n-two\n-three\n-four\n-five\n"
    ),
    "carriage returns": "--- a/crlf.py\n+++ b/crlf.py\n@@ -1,2 +1,2 @@\n-x = 1\r\n+x = 3\r\n y = 2\r\n",
    "no newline at the end": f"{HEAD}@@ -1,2 +1,2 @@\n-def merge(a, b):\n+def merge(b, a):\n     if not a:",
    "no patch": "I would change line 7.\n",
    "outside of the tree": "--- a/../escape.py\n+++ b/../escape.py\n@@ -0,0 +1 @@\n+x = 1\n",
}
LISTING = "#!/bin/bash\ncd /testbed\nfind . -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum\n"


class OneTree:
    """A room whose only image, itself, holds FILES."""

    digest, pythonpath, checkouts = "sha256:1", "src", 0

    def __init__(self, sandbox: Bwrap) -> None:
        self.sandbox = sandbox

    def image(self, name: str) -> OneTree:
        if name != "acme/widget":
            raise UserError(f"there is no image {name}")
        return self

    def checkout(self, revision: str, dest: Path) -> None:
        self.checkouts += 1
        write_files(dest)

    def commit(self, revision: str) -> str:
        if revision != "b":
            raise UserError(f"there is no commit {revision}")
        return "c" * 40

    def file_at(self, commit: str, path: str) -> bytes:
        if commit != "c" * 40 or path not in FILES:
            raise UserError(f"there is no {path} at {commit}")
        return FILES[path].encode()


def write_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_bytes(text.encode())


@pytest.fixture(scope="module")
def sandbox() -> Bwrap:
    try:
        return Bwrap.find()
    except UserError as error:
        pytest.skip(str(error))


def executor(
    sandbox: Bwrap, tmp_path: Path, timeout_s: float = 60.0, images: OneTree | None = None
) -> SandboxExecutor:
    store = GradeStore(tmp_path / "grades")
    room: Any = images or OneTree(sandbox)
    return SandboxExecutor(room, store, timeout_s, scratch=tmp_path / "scratch")


ROW: dict[str, Any] = {"image": "acme/widget", "base_commit": "b"}


def official_tree(folder: Path, patch: bytes) -> str | None:
    """Files after the official runner's attempts, run as it runs them: in a git work tree; None if all
    fail."""
    write_files(folder)
    (folder.parent / "patch.diff").write_bytes(patch)
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (["init", "-q"], ["add", "-A"], [*name, "commit", "-qm", "base"]):
        subprocess.run(["git", *command], cwd=folder, check=True)

    def succeeds(command: str) -> bool:
        return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True).returncode == 0

    attempts = [
        "git apply --verbose",
        "git apply --verbose --3way",
        "git apply --verbose --reject",
        "patch --batch --forward --fuzz=5 -p1 -i",
    ]
    for number, attempt in enumerate(attempts):
        if number:
            succeeds("git checkout -- . ; git clean -fd")
        if succeeds(f"{attempt} ../patch.diff"):
            break
    else:
        if not succeeds("git apply --check --reverse ../patch.diff"):
            return None
    listing = "find . -type f -not -path './.git/*' | LC_ALL=C sort | xargs -d '\\n' sha256sum"
    return subprocess.run(["bash", "-c", listing], cwd=folder, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", PATCHES)
def test_the_tree_is_that_of_the_official_attempts(name: str, sandbox: Bwrap, tmp_path: Path):
    patch = PATCHES[name].encode()
    execution = executor(sandbox, tmp_path)(ROW, LISTING, patch)
    expected = official_tree(tmp_path / "official" / "tree", patch)
    assert execution.applied == (expected is not None)
    if expected is not None:
        assert execution.log.decode() == expected


@pytest.mark.parametrize("name", ["clean", "deletion", "no patch", "outside of the tree"])
def test_a_repository_above_the_tree_has_no_say(name: str, sandbox: Bwrap, tmp_path: Path):
    """There git skips every file of a patch, and ends with success."""
    below = InRepository.around(sandbox, tmp_path / "outer")
    execution = executor(below, tmp_path)(ROW, LISTING, PATCHES[name].encode())
    expected = official_tree(tmp_path / "official" / "tree", PATCHES[name].encode())
    assert (execution.applied, execution.log.decode() if execution.applied else None) == (
        expected is not None,
        expected,
    )


@pytest.mark.parametrize(
    ("patch", "applied"),
    [
        (f"{HEAD}@@ -1,2 +1,2 @@\n def merge(a, b):\n     if not a:\n", False),
        (f"{HEAD}@@ -1,2 +1,2 @@\n-def merge(b, a):\n+def merge(a, b):\n     if not a:\n", True),
    ],
    ids=["without a change", "already there"],
)
def test_a_patch_that_changes_nothing(patch: str, applied: bool, sandbox: Bwrap, tmp_path: Path):
    assert executor(sandbox, tmp_path)(ROW, LISTING, patch.encode()).applied is applied


def test_blank_context_at_the_end_reaches_the_sandbox_whole(sandbox: Bwrap, tmp_path: Path):
    patch = PATCHES["clean"].encode()
    assert hashlib.sha256(patch).hexdigest() == BLANK_END_SHA256
    script = "#!/bin/bash\ncd /testbed\ncat merge.py\n"
    done = executor(sandbox, tmp_path)(ROW, script, patch)
    assert done.applied
    assert b"result.update(b)" in done.log


def test_log_has_both_streams_in_their_order(sandbox: Bwrap, tmp_path: Path):
    script = "#!/bin/bash\nset -x\n: '>>>>> Start'\necho out\necho err >&2\nprintf '\\xff\\n'\nexit 3\n"
    done = executor(sandbox, tmp_path)(ROW, script, b"")
    assert (
        done.log
        == b"+ : '>>>>> Start'\n+ echo out\nout\n+ echo err\nerr\n+ printf '\\xff\\n'\n\xff\n+ exit 3\n"
    )
    assert (done.applied, done.timed_out) == (True, False)


def test_processor_time_is_limited(sandbox: Bwrap, tmp_path: Path):
    """The script goes on after a test command that was ended, as the official runner's would not: it is
    told apart."""
    script = (
        "#!/bin/bash\nset -ux\necho before\nbash -c 'while :; do :; done'\nSWEBENCH_TEST_EXIT_CODE=$?\n"
        'echo ">>>>> Test Exit Code: $SWEBENCH_TEST_EXIT_CODE"\n'
    )
    done = executor(sandbox, tmp_path, timeout_s=1.0)(ROW, script, b"")
    assert done.timed_out
    assert b">>>>> Test Exit Code: 152\n" in done.log


def test_wall_time_is_limited(sandbox: Bwrap, tmp_path: Path):
    done = executor(sandbox, tmp_path, timeout_s=0.5)(ROW, "#!/bin/bash\necho before\nsleep 60\n", b"")
    assert done.timed_out
    assert done.log == b"before\n"
    assert 2.0 <= done.seconds < 20


def test_what_the_machine_lacks_is_not_the_patch_s_fault(sandbox: Bwrap, tmp_path: Path):
    with pytest.raises(ExecutionError, match="there is no image acme/other"):
        executor(sandbox, tmp_path)(ROW | {"image": "acme/other"}, LISTING, b"")


def test_equal_patches_are_run_once(sandbox: Bwrap, tmp_path: Path):
    images = OneTree(sandbox)
    clean = PATCHES["clean"].encode()
    first, again = (executor(sandbox, tmp_path, images=images)(ROW, LISTING, clean) for _ in range(2))
    assert first == again
    assert images.checkouts == 1
    for patch, script, row in (
        (b"", LISTING, ROW),
        (clean, "true", ROW),
        (clean, LISTING, ROW | {"base_commit": "c"}),
    ):
        executor(sandbox, tmp_path, images=images)(row, script, patch)
    assert images.checkouts == 4


def added(path: str, *lines: str) -> str:
    """A patch that adds a file."""
    rows = "".join(f"+{line}\n" for line in lines)
    return (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
        f"@@ -0,0 +1,{len(lines)} @@\n{rows}"
    )


IMPORTS_GC = f"{HEAD}@@ -1,2 +1,3 @@\n+import gc\n def merge(a, b):\n     if not a:\n"
TEST = added("pkg/tests/test_new.py", "import pytest")


@pytest.mark.parametrize(
    ("patch", "gold", "hits"),
    [
        (IMPORTS_GC, BLANK_END, ("merge.py:1 import gc",)),
        (IMPORTS_GC, IMPORTS_GC, ()),
        (BLANK_END, IMPORTS_GC, ()),
        (BLANK_END + IMPORTS_GC.replace("merge.py", "gone.py"), BLANK_END, ("gone.py:0 file does not fit",)),
        (TEST, BLANK_END, ()),
        (
            TEST + added("pkg/a.py", "from .tests.test_new import f"),
            BLANK_END,
            ("pkg/tests/test_new.py:1 import pytest",),
        ),
        (added("pkg/tests/conftest.py", "import gc"), BLANK_END, ("pkg/tests/conftest.py:1 import gc",)),
        (added("pkg/test_new.py", "import gc"), BLANK_END, ("pkg/test_new.py:1 import gc",)),
        (added(".hidden/tests/x.py", "x = 1") + "--- a/\udcff\n", BLANK_END, ()),
    ],
    ids=[
        "new",
        "gold's",
        "none",
        "unfit",
        "a test",
        "a test in use",
        "conftest",
        "no folder of tests",
        "odd",
    ],
)
def test_the_scan_of_a_patch(patch: str, gold: str, hits: tuple[str, ...], tmp_path: Path):
    nowhere: Any = None
    scanner = executor(nowhere, tmp_path)
    assert scanner.scan(ROW | {"patch": gold}, patch.encode("utf-8", "surrogateescape")) == hits


@pytest.mark.parametrize("change", [{"image": "acme/other"}, {"base_commit": "d"}])
def test_a_scan_without_the_base_commit_is_no_verdict(change: dict[str, str], tmp_path: Path):
    nowhere: Any = None
    with pytest.raises(ExecutionError, match="there is no"):
        executor(nowhere, tmp_path).scan(ROW | {"patch": BLANK_END} | change, IMPORTS_GC.encode())


def test_some_resolved_patches_are_tested_again(tmp_path: Path):
    """Which ones depends on instance and patch: a resumed run asks about the same ones."""

    class Asked(SandboxExecutor):
        def _decide(self, task: RolloutTask, patch: bytes) -> Outcome:
            return Outcome.SOLVED

    def asked(fraction: float) -> list[int]:
        nowhere: Any = None
        executor = Asked(nowhere, GradeStore(tmp_path), 60, retest_fraction=fraction)
        row = ROW | {"instance_id": "a", "FAIL_TO_PASS": "[]", "PASS_TO_PASS": "[]"}
        execution = Execution(b">>>>> Test Exit Code: 0\n", applied=True, timed_out=False, seconds=0.1)
        answers = [executor.cross_check(row, b"%d" % n, execution, True) for n in range(400)]
        assert all(answer.outcome is Outcome.SOLVED for answer in answers if answer) and all(answers)
        return [n for n, answer in enumerate(answers) if answer and answer.tested]

    assert (asked(0.0), asked(1.0)) == ([], list(range(400)))
    assert 70 < len(asked(0.25)) < 130 and asked(0.25) == asked(0.25)
    assert set(asked(0.25)) < set(asked(0.5))


def test_the_environment_is_the_image_s(sandbox: Bwrap, tmp_path: Path):
    script = '#!/bin/bash\necho "$PYTHONPATH $PYTHONHASHSEED $TZ"\n'
    assert executor(sandbox, tmp_path)(ROW, script, b"").log == b"/testbed/src 0 UTC\n"


@pytest.mark.parametrize("resolved", [False, True])
@pytest.mark.parametrize(
    ("log", "ours"),
    [
        (b"PASSED t.py::f\nPASSED t.py::p\n>>>>> Test Exit Code: 0\n", Outcome.SOLVED),
        (b"PASSED t.py::f\nPASSED t.py::p\n>>>>> Test Exit Code: 1\n", Outcome.UNSOLVED),
        (b">>>>> Test Exit Code: 0\nPASSED t.py::f\n>>>>> Test Exit Code: 1\n", Outcome.UNSOLVED),
        (b"FAILED t.py::f - assert\nPASSED t.py::p\n", Outcome.UNSOLVED),
        (b"", Outcome.UNSOLVED),
    ],
)
def test_our_reader_of_an_official_log(log: bytes, ours: Outcome, resolved: bool, tmp_path: Path):
    """It is asked about every log, also where no patch is to be tested again: a disagreement is never hidden."""
    row = ROW | {"instance_id": "a", "FAIL_TO_PASS": '["t.py::f"]', "PASS_TO_PASS": '["t.py::p"]'}
    execution = Execution(log, applied=True, timed_out=False, seconds=0.1)
    nowhere: Any = None
    reader = SandboxExecutor(nowhere, GradeStore(tmp_path), 60, retest_fraction=0.0)
    assert reader.cross_check(row, b"x", execution, resolved) == Answer(ours, tested=False)
