"""The miniature's tasks in the shapes of the real ones: SWE-smith rows, SWE-bench rows, local images."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import dump_json, write_atomic
from lightning_smith.miniature.repositories import ImageRecipe, TaskBranch
from lightning_smith.miniature.tasks.table import MiniTask, Source, load_sources, load_tasks
from lightning_smith.release.columns import SCHEMA, Task, sha256_sums, write_parquet
from lightning_smith.release.download import SUMS_FILE
from lightning_smith.repositories.revisions import MAIN, TEST_COMMAND
from lightning_smith.repositories.tree_files import TreeFile, read_sdist

EVALUATION_COLUMNS = (
    "repo",
    "instance_id",
    "base_commit",
    "patch",
    "test_patch",
    "problem_statement",
    "hints_text",
    "created_at",
    "version",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "environment_setup_commit",
    "difficulty",
    "eval_script",
    "log_parser",
    "eval_type",
    "image",
)
"""SWE-bench Verified as swebench 5 reads it: all strings, test lists as JSON text, `patch` the gold patch."""

LOG_PARSER = "parse_log_pytest_v2"
"""swebench's reader of `pytest -rA` output that keeps ids with blanks whole."""


def build_release(sources_file: Path, tasks_folder: Path, sdists: Path, out: Path, shards: int) -> int:
    """Write the training tasks as a release below `out`; returns the number of rows.

    `data/train-0000i-of-0000n.parquet`, rows sorted by instance id and dealt out in order, then `SHA256SUMS`,
    last. The same tasks give the same bytes. Raise UserError for a bad table or sdist.
    """
    rows = [row for _, row in release_rows(sources_file, tasks_folder, sdists, "train")]
    rows.sort(key=lambda row: row.instance_id)
    names = [f"data/train-{index:05d}-of-{shards:05d}.parquet" for index in range(shards)]
    (out / SUMS_FILE).unlink(missing_ok=True)
    for index, name in enumerate(names):
        part = rows[index * len(rows) // shards : (index + 1) * len(rows) // shards]
        write_parquet(
            out / name, SCHEMA, [pa.RecordBatch.from_pylist([row.to_row() for row in part], schema=SCHEMA)]
        )
    write_atomic(out / SUMS_FILE, sha256_sums(out, names))
    return len(rows)


def release_rows(
    sources_file: Path, tasks_folder: Path, sdists: Path, role: str
) -> Iterator[tuple[MiniTask, Task]]:
    """Yield the tasks of a role with their SWE-smith rows. Raise UserError for a bad table or sdist."""
    for task, source, text in _texts(sources_file, tasks_folder, sdists, role):
        yield task, release_row(task, source, text)


def build_heldout(sources_file: Path, tasks_folder: Path, sdists: Path, out: Path) -> int:
    """Write the held-out tasks as one parquet file of EVALUATION_COLUMNS; returns the number of rows."""
    rows = [
        evaluation_row(task, source, text)
        for task, source, text in _texts(sources_file, tasks_folder, sdists, "heldout")
    ]
    rows.sort(key=lambda row: row["instance_id"])
    schema = pa.schema([pa.field(name, pa.string()) for name in EVALUATION_COLUMNS])
    write_parquet(out, schema, [pa.RecordBatch.from_pylist(rows, schema=schema)])
    return len(rows)


def release_row(task: MiniTask, source: Source, text: str) -> Task:
    """Return a task as a SWE-smith row; `text` is the unbroken file's."""
    return Task(
        instance_id=task.instance_id,
        patch=task.bug_patch(text),
        FAIL_TO_PASS=task.fail_to_pass,
        PASS_TO_PASS=task.pass_to_pass,
        image_name=source.image_name,
        repo=source.repo,
        problem_statement=task.problem_statement,
    )


def evaluation_row(task: MiniTask, source: Source, text: str) -> dict[str, str]:
    """Return a task as a row of EVALUATION_COLUMNS; `text` is the unbroken file's.

    `base_commit` is a git expression that the image's repository understands: the bug with its tests present.
    Raise UserError for a test id that swebench's log reader cannot read back, which no patch could resolve.
    """
    for test_id in (*task.fail_to_pass, *task.pass_to_pass):
        if not is_readable_id(test_id):
            raise UserError(
                f"task {task.instance_id} has the test {test_id!r}, which swebench cannot read from a log"
            )
    return {
        "repo": source.repo,
        "instance_id": task.instance_id,
        "base_commit": f"{task.instance_id}~1",
        "patch": task.gold_patch(text),
        "test_patch": "",
        "problem_statement": task.problem_statement or "",
        "hints_text": "",
        "created_at": "",
        "version": source.version,
        "FAIL_TO_PASS": dump_json(list(task.fail_to_pass)),
        "PASS_TO_PASS": dump_json(list(task.pass_to_pass)),
        "environment_setup_commit": MAIN,
        "difficulty": "",
        "eval_script": eval_script(task.test_files, source.pythonpath),
        "log_parser": LOG_PARSER,
        "eval_type": "pass_and_fail",
        "image": source.image_name,
    }


def eval_script(test_files: Iterable[str], pythonpath: str) -> str:
    """Return the bash script that runs test files in /testbed and marks where their output starts and ends."""
    paths = ":".join(
        f"/testbed/{path}" if path not in ("", ".") else "/testbed" for path in pythonpath.split(":")
    )
    return "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            "cd /testbed",
            f"export PYTHONPATH={shlex.quote(paths)}",
            ": '>>>>> Start Test Output'",
            shlex.join([*TEST_COMMAND, *test_files]),
            ": '>>>>> End Test Output'",
            "",
        ]
    )


def is_readable_id(test_id: str) -> bool:
    """Return whether swebench's LOG_PARSER gives back this id from a line of `pytest -rA`.

    It joins what `str.split` finds with single blanks, cuts a failed test's line at ` - `, and removes
    control characters and what looks like the rest of a colour code.
    """
    colour = re.search(r"\[\d+m", test_id)
    return (
        test_id == " ".join(test_id.split()) and " - " not in test_id and not colour and test_id.isprintable()
    )


def _texts(
    sources_file: Path, tasks: Path, sdists: Path, role: str
) -> Iterator[tuple[MiniTask, Source, str]]:
    """Yield each task of a role with its source and the unbroken text of its file; reads one sdist at a time."""
    sources = load_sources(sources_file)
    by_package: dict[str, list[MiniTask]] = {}
    for task in load_tasks(tasks, role):
        by_package.setdefault(task.package, []).append(task)
    for package, members in sorted(by_package.items()):
        source = task_source(sources, package)
        files = read_sdist(sdists / source.filename, source.sha256)
        for task in members:
            yield task, source, source_text(task, files)


def task_source(sources: Iterable[Source], package: str) -> Source:
    """Return the row of sources.tsv whose tasks are used. Raise UserError if there is none."""
    for source in sources:
        if source.package == package and source.role != "demo":
            return source
    raise UserError(f"sources.tsv has no package {package!r} of role train or heldout")


def image_recipe(source: Source, sdist: Path, tasks_folder: Path) -> ImageRecipe:
    """Return how to build the image of one source: a branch for each of its tasks but those that lack theirs."""
    files = read_sdist(sdist, source.sha256)
    tasks = [task for task in load_tasks(tasks_folder, source.role) if task.package == source.package]
    return ImageRecipe(
        image_name=source.image_name,
        package=source.package,
        version=source.version,
        sdist=sdist,
        sdist_sha256=source.sha256,
        pythonpath=source.pythonpath,
        branches=tuple(task_branch(task, files) for task in tasks if task.branch),
    )


def task_branch(task: MiniTask, files: Mapping[str, TreeFile]) -> TaskBranch:
    """Return the branch of a task: the file with its bug, and the test files to remove."""
    broken = task.break_text(source_text(task, files)).encode("utf-8")
    tests = dict.fromkeys(test_file(test_id) for test_id in task.fail_to_pass)
    return TaskBranch(task.instance_id, {task.path: broken}, tuple(tests))


def source_text(task: MiniTask, files: Mapping[str, TreeFile]) -> str:
    """Return the unbroken text of the file that a task's bug is in. Raise UserError if it is absent or not UTF-8."""
    if task.path not in files:
        raise UserError(f"task {task.instance_id} breaks {task.path}, which its sdist lacks")
    try:
        return files[task.path].data.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"task {task.instance_id} breaks {task.path}, which is not UTF-8") from None


def test_file(test_id: str) -> str:
    """The file of a pytest id: what stands before the first `::`."""
    return test_id.partition("::")[0]
