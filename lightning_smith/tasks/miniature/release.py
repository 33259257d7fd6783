"""The miniature's tasks in the shapes of the real ones: SWE-smith rows, evaluation rows, local images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from lightning_smith.errors import UserError
from lightning_smith.images.build import ImageRecipe, TaskBranch
from lightning_smith.images.sdist import TreeFile, read_sdist
from lightning_smith.tasks.miniature.table import MiniTask, Source, load_tasks


def find_source(sources: Iterable[Source], package: str) -> Source:
    """The row of sources.tsv whose tasks are used; UserError if there is none."""
    for source in sources:
        if source.package == package and source.role != "demo":
            return source
    raise UserError(f"sources.tsv has no package {package!r} of role train or heldout")


def source_files(source: Source, sdists: Path) -> dict[str, TreeFile]:
    """The files of a source's sdist, which lies in the folder `sdists`; its sha256 is checked."""
    return read_sdist(sdists / source.filename, source.sha256)


def image_recipe(source: Source, sdist: Path, tasks_folder: Path) -> ImageRecipe:
    """How to build the image of one source: a branch for each of its tasks but those that lack theirs."""
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
    """The branch of a task: the file with its bug, and the test files to remove."""
    broken = task.break_text(source_text(task, files)).encode("utf-8")
    tests = dict.fromkeys(test_file(test_id) for test_id in task.fail_to_pass)
    return TaskBranch(task.instance_id, {task.path: broken}, tuple(tests))


def source_text(task: MiniTask, files: Mapping[str, TreeFile]) -> str:
    """The unbroken text of the file that a task's bug is in; UserError if it is absent or not UTF-8."""
    if task.path not in files:
        raise UserError(f"task {task.instance_id} breaks {task.path}, which its sdist lacks")
    try:
        return files[task.path].data.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"task {task.instance_id} breaks {task.path}, which is not UTF-8") from None


def test_file(test_id: str) -> str:
    """The file of a pytest id: what stands before the first `::`."""
    return test_id.partition("::")[0]
