"""Write a synthetic release of the true shape: as many rows, shards, images and tests as SWE-smith's.

    uv run python benchmarks/synthetic_release.py --out FOLDER [--rows 59136] [--images FOLDER]

FOLDER gets what `release.folder` of the configuration names: data/train-*.parquet, a small evaluation set
data/test-00000-of-00001.parquet, and SHA256SUMS; and branches/, a list for each image as
scripts/release/list_branches.py writes it. `--images` makes a git repository for each image as well, with those
branches, in the layout of `backends.images: local`. One row group is in memory at a time, whatever the number of rows.

What is true of it (at 59,136 rows; other sizes keep the proportions): 11 shards in order of the repository, 222
repositories with an image each, FAIL_TO_PASS and PASS_TO_PASS of a row together p50 415, p75 1,151, p90 2,657, p95
5,060, at most 22,028 tests that the rows of a repository share, 5.2 GB in Arrow's memory, 18,033 statements without
text, 1,265 rows whose branch their image lacks. Texts, names and patches mean nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lightning_smith.core.errors import run_script
from lightning_smith.core.files import write_atomic, write_json
from lightning_smith.miniature.tasks.release import EVALUATION_COLUMNS
from lightning_smith.release.columns import SCHEMA, sha256_sums, write_parquet
from lightning_smith.release.download import SUMS_FILE
from lightning_smith.repositories.branches import ImageBranches, write_branches
from lightning_smith.repositories.local import repository_digest
from lightning_smith.repositories.names import image_key

ROWS = 59_136
SHARDS = 11
IMAGES = 222
EMPTY_STATEMENTS = 18_033
MISSING_BRANCHES = 1_265
QUANTILES = {0.0: 2, 0.5: 415, 0.75: 1_151, 0.9: 2_657, 0.95: 5_060, 1.0: 22_028}
"""Tests of a row, FAIL_TO_PASS and PASS_TO_PASS together, by quantile."""

GROUP_ROWS, GROUP_BYTES = 1_000, 100 << 20
"""A row group's limits: those of `datasets`, which wrote the release."""

SHARED_REPOSITORY = "pydata/xarray"
"""The one repository that the evaluation set is about too."""
SHARED_FILE = "xarray/core/dataset.py"
EVALUATION_ROWS = 8

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Repository:
    """A repository, its image, and which rows are its own: `first` to `first + rows - 1` of the release."""

    owner: str
    name: str
    commit: str
    first: int
    rows: int

    @property
    def image_name(self) -> str:
        return f"swebench/swesmith.x86_64.{self.owner}_1776_{self.name}.{self.commit}"

    @property
    def snapshot(self) -> str:
        return f"{self.owner}__{self.name}.{self.commit}"

    def instance_id(self, row: int) -> str:
        """Name of a row, numbered within the release."""
        return f"{self.snapshot}.func_pm_op__{row:08x}"


@dataclass(frozen=True)
class Plan:
    """What each row is, as numbers; a row's position is its place in the release."""

    repositories: tuple[Repository, ...]
    tests: np.ndarray
    """Tests of each row."""
    statements: np.ndarray
    """0: text, 1: empty, 2: null, 3: blank."""
    in_image: np.ndarray
    """Whether the image has the row's branch."""


def make_plan(rows: int, seed: int) -> Plan:
    """Decide everything but the texts."""
    numbers = np.random.default_rng(seed)
    images = max(1, min(IMAGES, rows // 4))
    share = numbers.lognormal(0.0, 0.6, images)
    sizes = 1 + np.floor(share / share.sum() * (rows - images)).astype(int)
    sizes[: rows - sizes.sum()] += 1

    # Repositories of few tests and of many: consecutive slices of the sorted counts, in random order.
    sorted_tests = np.exp(
        np.interp(np.arange(rows) / max(1, rows - 1), list(QUANTILES), np.log(list(QUANTILES.values())))
    )
    ends = np.cumsum(sizes)
    order = numbers.permutation(images)
    tests = np.concatenate([sorted_tests[ends[i] - sizes[i] : ends[i]] for i in order]).round().astype(int)

    repositories, first = [], 0
    for number, i in enumerate(order):
        owner, name = SHARED_REPOSITORY.split("/") if number == 0 else (f"owner{number}", f"widget-{number}")
        repositories.append(Repository(owner, name, f"{number + 1:08x}", first, int(sizes[i])))
        first += int(sizes[i])

    statements = np.zeros(rows, dtype=int)
    empty = numbers.permutation(rows)[: round(rows * EMPTY_STATEMENTS / ROWS)]
    statements[empty] = 1
    statements[empty[::50]], statements[empty[1::50]] = 2, 3
    in_image = np.ones(rows, dtype=bool)
    in_image[numbers.permutation(rows)[: round(rows * MISSING_BRANCHES / ROWS)]] = False
    return Plan(tuple(repositories), tests, statements, in_image)


def write_release(out: Path, *, rows: int = ROWS, seed: int = 0, shards: int = SHARDS) -> Plan:
    """Write the folder, but no repositories; returns what it holds."""
    plan = make_plan(rows, seed)
    names = [f"data/train-{shard:05d}-of-{shards:05d}.parquet" for shard in range(shards)]
    bounds = [rows * shard // shards for shard in range(shards + 1)]
    for shard, name in enumerate(names):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(out / name, SCHEMA, compression="snappy") as writer:
            for batch in _row_groups(plan, bounds[shard], bounds[shard + 1], seed):
                writer.write_batch(batch)
    evaluation = "data/test-00000-of-00001.parquet"
    schema = pa.schema([pa.field(name, pa.string()) for name in EVALUATION_COLUMNS])
    found = [_evaluation_row(number) for number in range(EVALUATION_ROWS)]
    write_parquet(out / evaluation, schema, [pa.RecordBatch.from_pylist(found, schema=schema)])
    for repository in plan.repositories:
        branches = frozenset(_branches(plan, repository))
        listed = ImageBranches(repository.image_name, "sha256:" + "0" * 64, branches)
        write_branches(listed, out / "branches" / f"{image_key(repository.image_name)}.json")
    write_atomic(out / SUMS_FILE, sha256_sums(out, [*names, evaluation]))
    return plan


def write_images(folder: Path, plan: Plan) -> None:
    """A bare git repository for each image, with one commit and a branch for each row that has one."""
    for repository in plan.repositories:
        image = folder / image_key(repository.image_name)
        bare = image / "repository.git"
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", bare], check=True)
        who = "committer synthetic <synthetic@example.invalid> 1700000000 +0000"
        start = f"commit refs/heads/main\nmark :1\n{who}\ndata 0\nM 644 inline README\ndata 1\nx\n"
        heads = "".join(f"reset refs/heads/{name}\nfrom :1\n\n" for name in _branches(plan, repository))
        command = ["git", "-C", str(bare), "fast-import", "--quiet"]
        subprocess.run(command, input=(start + heads).encode(), check=True)
        about = {"image_name": repository.image_name, "digest": repository_digest(bare), "pythonpath": "."}
        rest = {
            "package": repository.name,
            "version": "0",
            "test_command": [],
            "sdist": "",
            "sdist_sha256": "",
        }
        write_json(image / "image.json", about | rest)


def _branches(plan: Plan, repository: Repository) -> list[str]:
    rows = range(repository.first, repository.first + repository.rows)
    return [repository.instance_id(row) for row in rows if plan.in_image[row]]


def _row_groups(plan: Plan, start: int, end: int, seed: int) -> Iterator[pa.RecordBatch]:
    """The rows `start` to `end - 1`, cut into row groups."""
    text = _text(seed)
    for repository in plan.repositories:
        low, high = max(start, repository.first), min(end, repository.first + repository.rows)
        if low >= high:
            continue
        suite = _suite(repository, int(plan.tests[repository.first :][: repository.rows].max()), seed)
        each = suite.nbytes / len(suite)
        at = low
        while at < high:
            sizes = np.cumsum(plan.tests[at : min(high, at + GROUP_ROWS)] * each)
            count = max(1, int(np.searchsorted(sizes, GROUP_BYTES)))
            yield _batch(plan, repository, range(at, min(high, at + count)), suite, text)
            at += count


def _batch(plan: Plan, repository: Repository, rows: range, suite: pa.Array, text: str) -> pa.RecordBatch:
    fails, passes = [], []
    for row in rows:
        chosen = (row * 7 + np.arange(plan.tests[row])) % len(suite)
        failing = 1 + row % min(3, max(1, len(chosen) - 1))
        fails.append(chosen[:failing])
        # Some rows name their failing tests among the passing ones again.
        passes.append(
            np.concatenate([chosen[:failing], chosen[2 * failing :]]) if row % 50 == 0 else chosen[failing:]
        )
    statements = [
        (text[row * 97 % 50_000 :][: 1_200 + row % 600], "", None, " \n\t")[plan.statements[row]]
        for row in rows
    ]
    columns = {
        "instance_id": pa.array([repository.instance_id(row) for row in rows]),
        "patch": pa.array([_patch(repository, row, text) for row in rows]),
        "FAIL_TO_PASS": _lists(fails, suite),
        "PASS_TO_PASS": _lists(passes, suite),
        "image_name": pa.array([repository.image_name] * len(rows)),
        "repo": pa.array([f"swesmith/{repository.snapshot}"] * len(rows)),
        "problem_statement": pa.array(statements, pa.string()),
    }
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _lists(chosen: list[np.ndarray], suite: pa.Array) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in chosen])]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, suite.take(pa.array(np.concatenate(chosen))))


def _suite(repository: Repository, size: int, seed: int) -> pa.Array:
    """Names of a repository's tests."""
    numbers = random.Random(f"{seed} {repository.snapshot}")
    words = ["".join(numbers.choices(_ALPHABET, k=numbers.randint(3, 7))) for _ in range(200)]
    names, module = [], ""
    for number in range(size):
        if number % 40 == 0:
            folder, file, group = numbers.choices(words, k=3)
            module = f"tests/{folder}/test_{file}_{number // 40}.py::Test{group}"
        names.append(
            f"{module}::test_{numbers.choice(words)}_{numbers.choice(words)}[{number % 40}-{numbers.choice(words)}]"
        )
    return pa.array(names)


def _text(seed: int) -> str:
    """80,000 characters of words, from which statements and patches are cut."""
    numbers = random.Random(seed)
    words = ["".join(numbers.choices(_ALPHABET, k=numbers.randint(2, 10))) for _ in range(4_000)]
    return " ".join(numbers.choices(words, k=16_000))[:80_000]


def _patch(repository: Repository, row: int, text: str) -> str:
    """A diff of one file; every third row of the shared repository edits the one that the evaluation set is about."""
    shared = f"{repository.owner}/{repository.name}" == SHARED_REPOSITORY and row % 3 == 0
    path = SHARED_FILE if shared else f"src/module_{row % 17}.py"
    lines = [text[(row * 61 + i * 70) % 70_000 :][:60] for i in range(14)]
    hunk = [
        f" {lines[0]}",
        *(f"-{line}" for line in lines[1:7]),
        *(f"+{line}" for line in lines[7:13]),
        f" {lines[13]}",
    ]
    body = "\n".join(hunk)
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -10,8 +10,8 @@\n{body}\n"


def _evaluation_row(number: int) -> dict[str, str]:
    patch = f"--- a/{SHARED_FILE}\n+++ b/{SHARED_FILE}\n@@ -1 +1 @@\n-x = {number}\n+x = 0\n"
    values = {"instance_id": f"pydata__xarray-{number}", "repo": SHARED_REPOSITORY, "patch": patch}
    values |= {
        "problem_statement": "It is wrong.",
        "FAIL_TO_PASS": json.dumps(["t.py::a"]),
        "PASS_TO_PASS": "[]",
    }
    return {name: values.get(name, "") for name in EVALUATION_COLUMNS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the release")
    parser.add_argument("--rows", type=int, default=ROWS, help="default %(default)s")
    parser.add_argument("--shards", type=int, default=SHARDS, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--images", type=Path, help="folder of the images' git repositories")
    args = parser.parse_args()
    plan = write_release(args.out, rows=args.rows, seed=args.seed, shards=args.shards)
    if args.images:
        write_images(args.images, plan)
    print(f"{args.rows} rows of {len(plan.repositories)} repositories in {args.shards} shards: {args.out}")


if __name__ == "__main__":
    run_script(main)
