"""Makes the miniature's tasks from nothing: unpack, reference run, candidate bugs, validation, selection.

Everything that finished is kept in the work folder, one folder a package:

    <work>/<package>.<hash>/tree/               the unpacked sdist, byte-compiled
                           reference.json       passed tests, processor time and executed functions of each test file
                           candidates.jsonl     bugs to try, with their windows and test files
                           validated.jsonl      append-only: one row a tried bug
                           confirmed.jsonl      append-only: one row a second run of a valid bug

so a run that was killed goes on where it stopped. The hash covers the row of sources.tsv and VERSION.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import (
    append_jsonl,
    cut_torn_line,
    dump_json,
    hash_json,
    read_json,
    read_jsonl,
    sha256_file,
    write_atomic,
    write_json,
    write_jsonl,
)
from lightning_smith.core.progress import Progress
from lightning_smith.miniature.policy.conversation import problem_statement
from lightning_smith.miniature.tasks.reference import (
    FileReference,
    choose_test_files,
    files_by_function,
    run_reference,
)
from lightning_smith.miniature.tasks.sources import unpack_sdist
from lightning_smith.miniature.tasks.table import Source, replace_line
from lightning_smith.miniature.tasks.testing import Testbed, byte_compile
from lightning_smith.miniature.tasks.validate import Validator
from lightning_smith.miniature.tasks.window import choose_window

VERSION = 2
"""Raise it when generated candidates change: work folders of another version are not used."""

WHOLE_SUITE_PACKAGES = ("isodate",)
"""Their tasks are graded by the whole suite, more than 200 tests, as most tasks of the real release are."""

TEST_LIMIT = 200
"""The filter of the published experiment: tasks with more tests are dropped there."""

PER_FUNCTION = 6

BLANK_STATEMENTS = (None, "", None, "", " \n", None, "", "\u200b")
"""Statements that hold nothing, in the shapes that releases have them."""


@dataclass(frozen=True)
class Limits:
    """How many bugs are tried a package, by what they are for."""

    train: int = 110
    heldout: int = 74
    whole_suite: int = 44

    def of(self, source: Source) -> int:
        if source.package in WHOLE_SUITE_PACKAGES:
            return self.whole_suite
        return self.train if source.role == "train" else self.heldout


class PackageWork:
    """One package's folder in the work folder; each stage is done once and read back afterwards."""

    def __init__(self, source: Source, work: Path) -> None:
        settings = [VERSION, source.sha256, source.source, list(source.tests), source.pythonpath]
        self.source = source
        self.folder = work / f"{source.package}.{hash_json(settings)[:8]}"
        self.tree = self.folder / "tree"

    def unpack(self, sdists: Path, testbed: Testbed) -> None:
        """Unpack and byte-compile the sdist, whose hash is checked."""
        if self.tree.is_dir():
            return
        archive = sdists / self.source.filename
        if not archive.exists() or sha256_file(archive) != self.source.sha256:
            raise UserError(
                f"{archive} is absent or not the file that sources.tsv pins: get it with "
                f"scripts/miniature/fetch_sdist.py --package {self.source.package} --out {archive}"
            )
        partial = self.folder / "tree.partial"
        shutil.rmtree(partial, ignore_errors=True)
        unpack_sdist(archive, partial)
        byte_compile(testbed.python, partial)
        partial.rename(self.tree)

    def reference(self, testbed: Testbed) -> dict[str, FileReference]:
        """Return the reference run of every test file, by file name."""
        path = self.folder / "reference.json"
        if not path.exists():
            found = run_reference(testbed, self.tree, self.source)
            write_json(path, {name: file.to_dict() for name, file in found.items()})
        return {name: FileReference.from_dict(row) for name, row in read_json(path).items()}

    def candidates(self, reference: dict[str, FileReference]) -> list[dict[str, Any]]:
        """Return every bug that a test file executes, in the order in which they are to be tried."""
        path = self.folder / "candidates.jsonl"
        if not path.exists():
            write_jsonl(path, self._candidates(reference))
        return list(read_jsonl(path))

    def _candidates(self, reference: dict[str, FileReference]) -> Iterable[dict[str, Any]]:
        try:
            from lightning_smith.miniature.tasks import bugs
        except ModuleNotFoundError as error:
            raise UserError(
                f"module {error.name} is missing: run with uv run --frozen --project envs/smith"
            ) from None
        covering = files_by_function(reference)
        names = bugs.source_files(self.tree, self.source.source)
        found = [bug for name in names for bug in bugs.bugs_of_file(self.tree, name, set(covering))]
        rng = random.Random(self.source.key)
        for bug in bugs.sample_bugs(found, PER_FUNCTION, rng):
            text = (self.tree / bug.path).read_bytes().decode("utf-8")
            broken = replace_line(bug.path, text, bug.line, bug.fixed, bug.buggy)
            window = choose_window(broken.split("\n"), bug.line, rng)
            if window is None:
                continue
            if self.source.package in WHOLE_SUITE_PACKAGES:
                files = tuple(reference)
            else:
                files = choose_test_files(covering[bug.path, bug.entity_first], reference, TEST_LIMIT)
            row = bug.to_dict()
            del row["entity_first"]
            yield {**row, "window": list(window), "test_files": list(files)}

    def log(self, name: str) -> dict[tuple[str, int, str], dict[str, Any]]:
        """Return rows of an append-only log by bug; a torn last line is cut."""
        path = self.folder / f"{name}.jsonl"
        cut_torn_line(path)
        return {bug_key(row): row for row in read_jsonl(path)} if path.exists() else {}

    def append(self, name: str, row: dict[str, Any]) -> None:
        append_jsonl(self.folder / f"{name}.jsonl", [row])

    def valid_rows(self) -> list[dict[str, Any]]:
        """Valid bugs by path and line, with the tests that they break.

        A bug whose second run broke other tests than its first is left out; one without a second run stays.
        """
        confirmed = self.log("confirmed")
        return [
            row
            for key, row in sorted(self.log("validated").items())
            if not row["reason"] and not confirmed.get(key, {"reason": ""})["reason"]
        ]


def bug_key(row: dict[str, Any]) -> tuple[str, int, str]:
    """Return what tells two bugs of a package apart."""
    return row["path"], row["line"], row["buggy"]


def make_candidates(work: PackageWork, sdists: Path, testbed: Testbed) -> Validator:
    """Return all stages of a package up to its candidates."""
    work.unpack(sdists, testbed)
    reference = work.reference(testbed)
    tests = sum(len(file.passed) for file in reference.values())
    found = len(work.candidates(reference))
    files = f"{len(reference)} test files"
    print(
        f"[{work.source.package}] {files}, {tests} tests pass, {found} bugs found",
        file=sys.stderr,
        flush=True,
    )
    return Validator(testbed, work.tree, work.source, reference)


def try_bugs(
    work: PackageWork, validator: Validator, limit: int, jobs: int, left_out: Collection[str] = ()
) -> None:
    """Validate the first `limit` candidates but those whose instance id is in `left_out`.

    Rows go to `validated.jsonl`.
    """
    rows = [
        row
        for row in work.candidates(validator.reference)[:limit]
        if instance_id(work.source, row) not in left_out
    ]
    done = work.log("validated")
    clean: dict[tuple[str, ...], bool] = {}
    lock = threading.Lock()

    def passes_clean(files: tuple[str, ...]) -> bool:
        if len(files) == 1:
            return True  # that is what the reference run was
        with lock:
            if files not in clean:
                clean[files] = validator.passes_clean(files)
            return clean[files]

    def check(row: dict[str, Any]) -> dict[str, Any]:
        files = tuple(row["test_files"])
        if not passes_clean(files):
            return {**row, "reason": "test files disagree", "FAIL_TO_PASS": [], "seconds": 0.0}
        verdict = validator.check(row["path"], row["line"], row["fixed"], row["buggy"], files)
        failing = list(verdict.fail_to_pass) if verdict.valid else []
        return {**row, "reason": verdict.reason, "FAIL_TO_PASS": failing, "seconds": verdict.seconds}

    open_rows = [row for row in rows if bug_key(row) not in done]
    progress = Progress(f"try {work.source.package}", len(rows), unit="bugs", done=len(rows) - len(open_rows))
    for row in _map(check, open_rows, jobs):
        work.append("validated", row)
        progress.step(valid=float(not row["reason"]), seconds=row["seconds"])
    progress.close()


def confirm_bugs(work: PackageWork, validator: Validator, jobs: int) -> None:
    """Run each valid bug a second time; one that breaks other tests then is flaky and dropped."""
    done = work.log("confirmed")
    rows = [row for key, row in work.log("validated").items() if not row["reason"] and key not in done]

    def check(row: dict[str, Any]) -> dict[str, Any]:
        files = tuple(row["test_files"])
        verdict = validator.check(row["path"], row["line"], row["fixed"], row["buggy"], files)
        same = list(verdict.fail_to_pass) == row["FAIL_TO_PASS"]
        key = {name: row[name] for name in ("path", "line", "buggy")}
        return {**key, "reason": verdict.reason or ("" if same else "flaky"), "seconds": verdict.seconds}

    progress = Progress(f"confirm {work.source.package}", len(rows) + len(done), unit="bugs", done=len(done))
    for row in _map(check, rows, jobs):
        work.append("confirmed", row)
        progress.step(same=float(not row["reason"]))
    progress.close()


def _map(
    call: Callable[[dict[str, Any]], dict[str, Any]], rows: list[dict[str, Any]], jobs: int
) -> Iterable[dict[str, Any]]:
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(call, row) for row in rows]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def instance_id(source: Source, row: dict[str, Any]) -> str:
    """Return the instance id of the task that a bug becomes."""
    digest = hash_json([row["path"], row["line"], row["buggy"]])[:8]
    return f"{source.key}.{row['modifier']}__{digest}"


def task_row(source: Source, row: dict[str, Any]) -> dict[str, Any]:
    """Return a validated bug as a row of train.jsonl or heldout.jsonl."""
    first, last = row["window"]
    fields = ("path", "entity", "kind", "modifier", "line", "buggy", "fixed", "window")
    return {
        "instance_id": instance_id(source, row),
        "package": source.package,
        **{name: row[name] for name in fields},
        "problem_statement": problem_statement(row["entity"], row["path"], row["kind"], first, last),
        "test_files": row["test_files"],
        "FAIL_TO_PASS": row["FAIL_TO_PASS"],
    }


def spoil_some(rows: list[dict[str, Any]], blank: int, branchless: int, sizes: dict[str, int]) -> None:
    """Give `blank` rows a statement that holds nothing and take the branch from `branchless` others.

    Such rows are in every real release. Which ones is settled by the hash of the instance id; rows with more
    than TEST_LIMIT tests (`sizes`, by instance id) are left as they are.
    """
    small = [row for row in rows if sizes[row["instance_id"]] <= TEST_LIMIT]
    ranked = sorted(small, key=lambda row: hash_json(row["instance_id"]))
    for index, row in enumerate(ranked[:blank]):
        row["problem_statement"] = BLANK_STATEMENTS[index % len(BLANK_STATEMENTS)]
    for row in ranked[blank : blank + branchless]:
        row["branch"] = False


def write_tasks(
    works: list[PackageWork],
    references: dict[str, dict[str, FileReference]],
    out: Path,
    blank: int,
    branchless: int,
) -> dict[str, int]:
    """Write tests.json and the .jsonl file of each role that `works` has; returns the rows by role."""
    tests_path = out / "tests.json"
    tests: dict[str, dict[str, list[str]]] = read_json(tests_path) if tests_path.exists() else {}
    rows: dict[str, list[dict[str, Any]]] = {}
    sizes: dict[str, int] = {}
    for work in works:
        source, reference = work.source, references[work.source.package]
        used: set[str] = set()
        for valid in work.valid_rows():
            row = task_row(source, valid)
            sizes[row["instance_id"]] = sum(len(reference[name].passed) for name in row["test_files"])
            used.update(row["test_files"])
            rows.setdefault(source.role, []).append(row)
        tests[source.package] = {name: list(reference[name].passed) for name in sorted(used)}
    if "train" in rows:
        spoil_some(rows["train"], blank, branchless, sizes)
    out.mkdir(parents=True, exist_ok=True)
    for role, role_rows in rows.items():
        write_jsonl(out / f"{role}.jsonl", role_rows)
    named = {row["package"] for path in out.glob("*.jsonl") for row in read_jsonl(path)}
    write_atomic(tests_path, _tests_json({name: files for name, files in tests.items() if name in named}))
    return {role: len(role_rows) for role, role_rows in rows.items()}


def _tests_json(tests: dict[str, dict[str, list[str]]]) -> str:
    """JSON with one test file a line, packages sorted."""
    packages = []
    for package, files in sorted(tests.items()):
        lines = [f"  {dump_json(name)}: {dump_json(ids)}" for name, ids in sorted(files.items())]
        packages.append(f" {dump_json(package)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(packages) + "\n}\n"


def make_tasks(
    sources: list[Source],
    *,
    sdists: Path,
    work: Path,
    out: Path,
    testbed_python: Path,
    jobs: int = 1,
    limits: Limits | None = None,
    confirm: bool = True,
    blank: int = 18,
    branchless: int = 12,
    left_out: Collection[str] = (),
) -> dict[str, int]:
    """Make the tasks of these sources; returns the number of rows by role.

    `sdists`: folder of the fetched sdists. `work`: folder for what a later run goes on from. `jobs`: test
    runs at a time. `out`: gets train.jsonl, heldout.jsonl and tests.json; a role without a source is left as
    it is. `left_out`: instance ids of bugs that are not tried.
    """
    limits = limits or Limits()
    works = [PackageWork(source, work) for source in sources]
    with Testbed(testbed_python, work / "scratch") as testbed:
        validators = []
        for package in works:
            validator = make_candidates(package, sdists, testbed)
            try_bugs(package, validator, limits.of(package.source), jobs, left_out)
            validators.append(validator)
        if confirm:
            for package, validator in zip(works, validators, strict=True):
                confirm_bugs(package, validator, jobs)
    references = {validator.source.package: validator.reference for validator in validators}
    return write_tasks(works, references, out, blank, branchless)
