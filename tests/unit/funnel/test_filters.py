"""The published filters and the ledger: every row is kept once or dropped once, with its reason."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from swe_smith_rows import IMAGE, load_script, make_row, write_shard

from lightning_smith.contracts.task import Grade
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_jsonl
from lightning_smith.funnel.filters import branch, bug_in_tests, fail_to_pass, overlap, statement, test_count
from lightning_smith.funnel.filters.decisions import Decisions, decide, read_decisions, write_decisions
from lightning_smith.funnel.ledger import (
    FilterTotal,
    FunnelRow,
    funnel_rows,
    read_funnel,
    release_ids,
    totals,
    write_candidates,
    write_funnel,
)
from lightning_smith.funnel.release_counts import count_release
from lightning_smith.release.columns import SCHEMA, read_tasks

PUBLISHED = (statement.NAME, branch.NAME, test_count.NAME)
GRADABLE = (fail_to_pass.NAME, bug_in_tests.NAME)
"""What the chain drops after the published filters."""
UNICODE_ROWS = Path(__file__).parents[2] / "data" / "unicode_line_ends.jsonl"
FAST = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def run_all(shards: list[Path], folder: Path, branches: dict[str, set[str]], limit: int) -> dict[str, bytes]:
    """All filters, the ledger and the candidates; returns the bytes of every file."""
    steps = [
        (statement.NAME, statement.COLUMNS, statement.reasons),
        (branch.NAME, branch.COLUMNS, partial(branch.reasons, branches=branches)),
        (test_count.NAME, test_count.COLUMNS, partial(test_count.reasons, limit=limit)),
    ]
    filters: list[Decisions] = []
    for name, columns, reasons in steps:
        decisions = decide(name, shards, columns, reasons, filters[-1] if filters else None)
        write_decisions(folder / f"{name}.tsv", decisions)
        filters.append(read_decisions(folder / f"{name}.tsv"))
        assert filters[-1] == decisions
    write_funnel(folder / "funnel.tsv", funnel_rows(release_ids(shards), filters))
    write_candidates(folder / "candidates.parquet", shards, filters[-1].kept)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "null"),
        ("", "empty"),
        (" \r\n\t\u00a0\u2003\u3000\u2028\u0085", "whitespace"),
        ("\u200b\ufeff", "invisible"),
        (" \u200d \u2060\u00ad", "invisible"),
        ("\u3164\u2800", "invisible"),
        ("\x00", "invisible"),
        ("x", None),
        ("\u200b.", None),
        ("\U0001f600", None),
        ("\u0301", None),
    ],
)
def test_why_a_statement_is_dropped(text: str | None, reason: str | None) -> None:
    assert statement.why_dropped(text) == reason
    assert statement.reasons(batch_of([make_row(1, problem_statement=text)])) == [reason]


def test_the_rows_with_unicode_line_ends(tmp_path: Path) -> None:
    rows = list(read_jsonl(UNICODE_ROWS))
    shard = write_shard(tmp_path / "in" / "a.parquet", rows)
    decisions = decide(statement.NAME, [shard], statement.COLUMNS, statement.reasons, None)
    by_index = {index: decisions.reasons[row["instance_id"]] for index, row in enumerate(rows)}
    assert by_index == {
        0: None, 1: None, 2: None, 3: None, 4: "whitespace", 5: "invisible",
        6: "null", 7: "empty", 8: "whitespace", 9: None,
    }  # fmt: skip
    (tmp_path / "out").mkdir()
    run_all([shard], tmp_path / "out", {rows[0]["image_name"]: {row["instance_id"] for row in rows}}, 200)
    survivors = list(read_tasks([tmp_path / "out" / "candidates.parquet"]))
    assert [task.to_row() for task in survivors] == [rows[index] for index in (0, 1, 2, 3, 9)]
    assert [(row.reason, row.dropped) for row in read_funnel(tmp_path / "out" / "funnel.tsv")[1:5]] == [
        ("null", 1), ("empty", 1), ("whitespace", 2), ("invisible", 1),
    ]  # fmt: skip


def test_shards_of_a_writer_that_guesses_types(tmp_path: Path) -> None:
    """One shard of nine rows has only null statements, another only empty lists and encoded columns."""
    about = [{"PASS_TO_PASS": ["t.py::b"]}, {"PASS_TO_PASS": ["t.py::b"], "problem_statement": None}]
    about += [{"PASS_TO_PASS": [], "problem_statement": "It is wrong."}]
    rows = [make_row(number, FAIL_TO_PASS=["t.py::a"], **about[number // 3]) for number in range(9)]
    shards = []
    for number in range(3):
        table = pa.Table.from_pylist(rows[3 * number : 3 * number + 3])
        for name in ("repo", "image_name") if number == 2 else ():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table.column(name).dictionary_encode())
        shards.append(tmp_path / f"train-{number}.parquet")
        pq.write_table(table, shards[-1])
    schemas = [pq.read_schema(shard) for shard in shards]
    assert schemas[1].field("problem_statement").type == pa.null()
    assert schemas[2].field("PASS_TO_PASS").type == pa.list_(pa.null())
    assert pa.types.is_dictionary(schemas[2].field("repo").type)
    counts = count_release(shards).counts
    assert (counts["rows"], counts["null"], counts["empty_statements"]) == (9, 3, 3)
    decisions = decide(statement.NAME, shards, statement.COLUMNS, statement.reasons, None)
    assert [decisions.reasons[row["instance_id"]] for row in rows] == [None] * 3 + ["null"] * 3 + [None] * 3
    tasks = list(read_tasks(shards))
    assert [len(task.FAIL_TO_PASS + task.PASS_TO_PASS) for task in tasks] == [2, 2, 2, 2, 2, 2, 1, 1, 1]
    run_all(shards, tmp_path, {rows[0]["image_name"]: {row["instance_id"] for row in rows}}, 200)
    assert [task.to_row() for task in read_tasks([tmp_path / "candidates.parquet"])] == rows[:3] + rows[6:]


def test_branches() -> None:
    rows = [make_row(1), make_row(2), make_row(3, image_name="swesmith/other")]
    known = {IMAGE: {rows[0]["instance_id"], rows[2]["instance_id"]}, "swesmith/other": set()}
    assert branch.reasons(batch_of(rows), known) == [None, "not_in_image", "not_in_image"]
    with pytest.raises(UserError, match=r"the branches of image swesmith/other .* are not known"):
        branch.reasons(batch_of(rows), {IMAGE: set()})
    elsewhere = f"jyangballin/{IMAGE.rpartition('/')[2]}"
    assert branch.reasons(batch_of(rows[:2]), {elsewhere: known[IMAGE]}) == [None, "not_in_image"]


@pytest.mark.parametrize(
    ("fails", "passes", "reason"),
    [
        (1, 199, None),
        (1, 200, "too_many_tests"),
        (201, 0, "too_many_tests"),
        (0, 0, None),
    ],
)
def test_both_lists_are_counted_together(fails: int, passes: int, reason: str | None) -> None:
    row = make_row(
        1, FAIL_TO_PASS=[f"f{i}" for i in range(fails)], PASS_TO_PASS=[f"p{i}" for i in range(passes)]
    )
    assert test_count.reasons(batch_of([make_row(0), row]), 200) == [None, reason]


def test_a_test_named_twice_counts_once() -> None:
    names = [f"t{i}" for i in range(200)]
    row = make_row(1, FAIL_TO_PASS=names[:3], PASS_TO_PASS=names + names[:50])
    assert test_count.reasons(batch_of([row]), 200) == [None]
    assert test_count.reasons(batch_of([row]), 199) == ["too_many_tests"]


@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.sampled_from("abcdefgh"), max_size=9),
            st.lists(st.sampled_from("efghijkl"), max_size=40),
        )
    ),
    limit=st.integers(1, 12),
    cut=st.integers(0, 3),
)
def test_tests_are_counted_as_a_set_would(
    rows: list[tuple[list[str], list[str]]], limit: int, cut: int
) -> None:
    batch = batch_of([make_row(i, FAIL_TO_PASS=f, PASS_TO_PASS=p) for i, (f, p) in enumerate(rows)]).slice(
        cut
    )
    expected = ["too_many_tests" if len({*f, *p}) > limit else None for f, p in rows[cut:]]
    assert test_count.reasons(batch, limit) == expected
    assert test_count.reasons(encoded(batch), limit) == expected


def encoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with lists of dictionary-encoded strings, the dictionary holding each twice."""
    columns = []
    for name in batch.schema.names:
        column = batch.column(name)
        if name in test_count.COLUMNS:
            whole = column.values.dictionary_encode()
            twice = pa.concat_arrays([whole.dictionary, whole.dictionary])
            odd = [
                index + len(whole.dictionary) * (place % 2)
                for place, index in enumerate(whole.indices.to_pylist())
            ]
            values = pa.DictionaryArray.from_arrays(pa.array(odd, pa.int32()), twice)
            column = pa.ListArray.from_arrays(column.offsets, values)
        columns.append(column)
    return pa.record_batch(columns, names=batch.schema.names)


@pytest.mark.parametrize("cheap_batches", [False, True])
def test_only_the_rows_that_were_left_are_decided(tmp_path: Path, cheap_batches: bool) -> None:
    rows = [make_row(i, PASS_TO_PASS=[f"t{j}" for j in range(5 * i)]) for i in range(6)]
    shards = [write_shard(tmp_path / "a.parquet", rows, row_group_size=3)]
    before = Decisions(
        "branch", {row["instance_id"]: "not_in_image" if i % 2 else None for i, row in enumerate(rows)}
    )
    found = decide(
        test_count.NAME, shards, test_count.COLUMNS, partial(test_count.reasons, limit=12), before,
        cheap_batches=cheap_batches,
    )  # fmt: skip
    assert found.reasons == {
        rows[0]["instance_id"]: None,
        rows[2]["instance_id"]: None,
        rows[4]["instance_id"]: "too_many_tests",
    }


def test_a_sliced_batch_is_counted_by_its_own_rows() -> None:
    rows = [make_row(i, PASS_TO_PASS=[f"t{j}" for j in range(i)]) for i in range(6)]
    assert test_count.reasons(batch_of(rows).slice(2, 3), 4) == [None, None, "too_many_tests"]


statements = st.one_of(
    st.none(), st.sampled_from(["", " ", "\u200b", "Broken.", "\u2028x"]), st.text(max_size=4)
)
releases = st.lists(
    st.tuples(statements, st.booleans(), st.lists(st.sampled_from("abcdef"), max_size=6), st.integers(0, 2)),
    max_size=14,
)


@FAST
@given(release=releases, data=st.data())
def test_the_filters_partition_any_release_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, release: list[Any], data: st.DataObject
) -> None:
    rows = [
        make_row(number, problem_statement=text, FAIL_TO_PASS=tests[:2], PASS_TO_PASS=tests[2:])
        for number, (text, _, tests, _) in enumerate(release)
    ]
    branches = {IMAGE: {row["instance_id"] for row, item in zip(rows, release, strict=True) if item[1]}}
    outcomes = []
    for order in (range(len(rows)), data.draw(st.permutations(range(len(rows))))):
        folder = tmp_path_factory.mktemp("run")
        parts: dict[int, list[dict[str, Any]]] = {0: [], 1: [], 2: []}
        for place in order:
            shard = release[place][3] if order == range(len(rows)) else data.draw(st.integers(0, 2))
            parts[shard].append(rows[place])
        shards = [write_shard(folder / "in" / f"{name}.parquet", part) for name, part in parts.items()]
        for again, given_order in enumerate((shards, shards[::-1])):
            (folder / f"out{again}").mkdir()
            outcomes.append(run_all(given_order, folder / f"out{again}", branches, 3))
    assert all(outcome == outcomes[0] for outcome in outcomes)

    ledger = read_funnel(folder / "out0" / "funnel.tsv")
    assert ledger[0] == FunnelRow("release", len(rows), 0, "-")
    for above, row in pairwise(ledger):
        assert row.kept + row.dropped == above.kept
    seen: list[str] = []
    for name in PUBLISHED:
        decisions = read_decisions(folder / "out0" / f"{name}.tsv")
        assert set(decisions.reasons) == {row["instance_id"] for row in rows} - set(seen)
        seen += sorted(set(decisions.reasons) - decisions.kept)
    survivors = pq.read_table(folder / "out0" / "candidates.parquet").to_pylist()
    assert sorted(seen + [row["instance_id"] for row in survivors]) == sorted(
        row["instance_id"] for row in rows
    )
    assert survivors == [row for row in rows if row["instance_id"] not in seen]
    assert ledger[-1].kept == len(survivors)


patches = st.sampled_from(
    ["", "no patch", "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x\n+y\n", make_row(0)["patch"]]
)
kinds = st.sampled_from([None, "file", "repository"])


@FAST
@given(release=st.lists(st.tuples(patches, kinds), max_size=12), data=st.data())
def test_each_switched_on_filter_partitions_its_input_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, release: list[Any], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    rows = [
        make_row(number, patch=patch, FAIL_TO_PASS=["t.py::a"] * (number % 3))
        for number, (patch, _) in enumerate(release)
    ]
    shared = {row["instance_id"]: kind for row, (_, kind) in zip(rows, release, strict=True) if kind}
    before = Decisions(
        "statement", {row["instance_id"]: data.draw(st.sampled_from([None, "empty"])) for row in rows}
    )
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    whole = [write_shard(folder / "whole.parquet", rows)]
    parts = [
        write_shard(folder / f"{n}.parquet", part) for n, part in enumerate((shuffled[:cut], shuffled[cut:]))
    ]
    for module, reasons in (
        (bug_in_tests, partial(bug_in_tests.reasons, grade=Grade.ALL)),
        (fail_to_pass, fail_to_pass.reasons),
        (overlap, partial(overlap.reasons, overlapping=shared, level="file")),
        (overlap, partial(overlap.reasons, overlapping=shared, level="repository")),
    ):
        columns = bug_in_tests.columns(Grade.ALL) if module is bug_in_tests else module.COLUMNS
        first, second = (decide(module.NAME, shards, columns, reasons, before) for shards in (whole, parts))
        assert first == second
        assert set(first.reasons) == before.kept
        assert len(first.kept) + first.dropped == len(before.kept)
        assert {reason for reason in first.reasons.values() if reason} <= set(module.REASONS)
        for number, decisions in enumerate((first, second)):
            write_decisions(folder / f"{number}.tsv", decisions)
        assert (folder / "0.tsv").read_bytes() == (folder / "1.tsv").read_bytes()


def test_the_ledger_as_a_file(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(5)]
    rows[1]["problem_statement"] = None
    rows[2]["problem_statement"] = ""
    rows[3]["PASS_TO_PASS"] = [f"t{i}" for i in range(300)]
    (tmp_path / "out").mkdir()
    shard = write_shard(tmp_path / "a.parquet", rows)
    files = run_all([shard], tmp_path / "out", {IMAGE: {row["instance_id"] for row in rows[:4]}}, 200)
    assert files["funnel.tsv"].decode() == (
        "filter\tkept\tdropped\treason\n"
        "release\t5\t0\t-\n"
        "statement\t4\t1\tnull\n"
        "statement\t3\t1\tempty\n"
        "statement\t3\t0\twhitespace\n"
        "statement\t3\t0\tinvisible\n"
        "branch\t2\t1\tnot_in_image\n"
        "test_count\t1\t1\ttoo_many_tests\n"
    )
    assert files["statement.tsv"].decode().splitlines()[1:3] == [
        f"{rows[0]['instance_id']}\tkept\t",
        f"{rows[1]['instance_id']}\tdropped\tnull",
    ]
    assert totals(read_funnel(tmp_path / "out" / "funnel.tsv")) == [
        FilterTotal("release", 5, 0),
        FilterTotal("statement", 3, 2),
        FilterTotal("branch", 2, 1),
        FilterTotal("test_count", 1, 1),
    ]


def test_decisions_of_other_shards_are_refused(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.parquet", [make_row(1)])
    foreign = Decisions("statement", {make_row(2)["instance_id"]: None})
    with pytest.raises(UserError, match=r"the filter statement kept .*00000002, which no shard holds"):
        decide(branch.NAME, [shard], branch.COLUMNS, partial(branch.reasons, branches={}), foreign)
    for filters in ([foreign], [Decisions("statement", {})]):
        with pytest.raises(UserError, match="do not fit the rows left for it"):
            funnel_rows(release_ids([shard]), filters)
    with pytest.raises(UserError, match="gives the unknown reason 'mood'"):
        funnel_rows({"a"}, [Decisions("statement", {"a": "mood"})])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "instance_id\tdecision\treason\na\tkept\t",
        "instance_id\tdecision\treason\na\tkept\tnull\n",
        "instance_id\tdecision\treason\na\tdropped\t\n",
        "instance_id\tdecision\treason\na\tmaybe\t\n",
        "instance_id\tdecision\treason\na\tkept\t\na\tkept\t\n",
        "instance_id\treason\n",
    ],
)
def test_damaged_decisions_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.tsv").write_text(text)
    with pytest.raises(UserError, match=r"x\.tsv"):
        read_decisions(tmp_path / "x.tsv")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "filter\tkept\tdropped\treason\n",
        "filter\tkept\tdropped\treason\nrelease\t5\t0\t-\nstatement\t3\t1\tnull\n",
        "filter\tkept\tdropped\treason\nrelease\tfive\t0\t-\n",
        "filter\tkept\tdropped\treason\nrelease\t5\t0\t-",
    ],
)
def test_a_damaged_ledger_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "funnel.tsv").write_text(text)
    with pytest.raises(UserError, match=r"funnel\.tsv"):
        read_funnel(tmp_path / "funnel.tsv")


def test_absent_files_and_unwritable_ids_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_decisions(tmp_path / "none.tsv")
    with pytest.raises(UserError, match="does not exist"):
        read_funnel(tmp_path / "none.tsv")
    for name in ("", "a\tb", "a\nb", "../../x", "a\0b", " a", "-a", "a" + "é" * 100):
        with pytest.raises(UserError, match="can name no file and no branch"):
            write_decisions(tmp_path / "x.tsv", Decisions("statement", {name: None}))
    write_decisions(tmp_path / "x.tsv", Decisions("statement", {"a" + "é" * 99: None, "a+b@c~1": None}))


def test_the_scripts_from_shards_to_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctest = {"patch": "--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"}
    rows = [make_row(1), make_row(2, problem_statement=" "), make_row(3), make_row(4, FAIL_TO_PASS=[])]
    rows += [make_row(5, **doctest), make_row(6, FAIL_TO_PASS=["x.py::a"], **doctest)]
    folder = tmp_path / "da ta é"
    shards = [
        str(write_shard(folder / "raw" / "train-00000-of-00002.parquet", rows[:2])),
        str(write_shard(folder / "raw" / "train-00001-of-00002.parquet", rows[2:])),
    ]
    listed = {
        "image_name": IMAGE,
        "digest": "sha256:0",
        "branches": [row["instance_id"] for row in (*rows[:2], *rows[3:])],
    }
    (folder / "branches.json").write_text(json.dumps(listed))
    out = {name: str(folder / "filters" / f"{name}.tsv") for name in PUBLISHED + GRADABLE}
    shared = ["--shards", *shards]
    load_script("filter_statement").main([*shared, "--out", out["statement"]])
    branches = ["--branches", str(folder / "branches.json")]
    step = [*shared, "--previous", out["statement"], *branches, "--out", out["branch"]]
    load_script("filter_branch").main(step)
    step = [*shared, "--previous", out["branch"], "--limit", "200", "--out", out["test_count"]]
    load_script("filter_test_count").main(step)
    step = [*shared, "--previous", out["test_count"], "--out", out["fail_to_pass"]]
    load_script("filter_fail_to_pass").main(step)
    step = [
        *shared,
        "--previous",
        out["fail_to_pass"],
        "--grade",
        "fail_to_pass",
        "--out",
        out["bug_in_tests"],
    ]
    load_script("filter_bug_in_tests").main(step)
    results = ["--funnel", str(folder / "funnel.tsv"), "--candidates", str(folder / "candidates.parquet")]
    load_script("collect_candidates").main([*shared, "--decisions", *out.values(), *results])
    assert pq.read_table(folder / "candidates.parquet").to_pylist() == [rows[0], rows[5]]
    said = capsys.readouterr().out
    assert "filter branch: 5 rows, 4 kept, 1 not_in_image" in said
    assert "filter bug_in_tests: 3 rows, 2 kept, 1 bug_in_test_file" in said
    ledger = read_funnel(folder / "funnel.tsv")
    assert [(row.reason, row.dropped) for row in ledger if row.filter in GRADABLE] == [
        ("no_fail_to_pass", 1), ("unreadable_patch", 0), ("bug_in_test_file", 1),
    ]  # fmt: skip
    published = [total for total in totals(ledger) if total.filter in PUBLISHED]
    assert [total.dropped for total in published] == [1, 1, 0], "as if the rows after them were not there"
