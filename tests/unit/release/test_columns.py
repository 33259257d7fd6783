"""SWE-smith shards: what is read, and what is refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from swe_smith_rows import make_row, write_shard

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_jsonl, write_jsonl
from lightning_smith.release.columns import (
    SCHEMA,
    Task,
    check_schema,
    iter_batches,
    iter_batches_unordered,
    read_tasks,
    write_parquet,
)
from lightning_smith.release.image_lists import needed

UNICODE_ROWS = Path(__file__).parents[2] / "data" / "unicode_line_ends.jsonl"
STRINGS = pa.list_(pa.string())


def replace_field(name: str, *fields: pa.Field) -> pa.Schema:
    """SCHEMA with one column replaced by others, or by none."""
    return pa.schema([new for old in SCHEMA for new in (fields if old.name == name else (old,))])


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [
        make_row(number, PASS_TO_PASS=[f"t.py::p[{i} - x]" for i in range(number)]) for number in range(70)
    ]
    shards = [write_shard(tmp_path / "b.parquet", rows[40:]), write_shard(tmp_path / "a.parquet", rows[:40])]
    tasks = list(read_tasks(shards))
    assert [task.to_row() for task in tasks] == rows
    assert [Task.from_row(json.loads(json.dumps(task.to_row()))) for task in tasks] == tasks


def test_only_the_columns_asked_for_are_read_in_small_batches(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.parquet", [make_row(number) for number in range(10)], row_group_size=4)
    batches = list(iter_batches([path], ("problem_statement", "instance_id"), batch_rows=3))
    assert all(batch.schema.names == ["problem_statement", "instance_id"] for batch in batches)
    assert max(batch.num_rows for batch in batches) == 3
    assert sum(batch.num_rows for batch in batches) == 10


def test_only_the_rows_wanted_are_read_and_repeated_ids_are_still_found(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(40)]
    shards = [
        write_shard(tmp_path / "a.parquet", rows[:20], row_group_size=5),
        write_shard(tmp_path / "b.parquet", rows[20:], row_group_size=5),
    ]
    wanted = {rows[number]["instance_id"] for number in (0, 7, 8, 33)}
    for columns in (("instance_id", "PASS_TO_PASS"), ("instance_id", "patch")):
        found = [row for batch in iter_batches(shards, columns, wanted=wanted) for row in batch.to_pylist()]
        assert found == [
            {name: row[name] for name in columns} for row in rows if row["instance_id"] in wanted
        ]
    assert list(iter_batches(shards, ("instance_id",), wanted=set())) == []
    again = write_shard(tmp_path / "c.parquet", [rows[39]])
    with pytest.raises(UserError, match=r"is in .*b\.parquet and again in .*c\.parquet"):
        list(iter_batches([*shards, again], ("instance_id",), wanted=wanted))


def test_batches_are_small_where_rows_have_many_tests(tmp_path: Path) -> None:
    heavy = [make_row(number, PASS_TO_PASS=["t"] * 60_000) for number in range(10)]
    light = [make_row(number) for number in range(10, 3000)]
    shards = [write_shard(tmp_path / "a.parquet", heavy), write_shard(tmp_path / "b.parquet", light)]
    batches = list(iter_batches(shards, ("instance_id", "PASS_TO_PASS")))
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1, 1024, 1024, 942]
    assert [batch.num_rows for batch in iter_batches(shards, ("instance_id",))] == [10, 1024, 1024, 942]


def test_batches_without_an_order_are_the_same_and_leave_no_thread(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(200)]
    shards = [write_shard(tmp_path / "a.parquet", rows[:90], row_group_size=7)]
    shards.append(write_shard(tmp_path / "b.parquet", rows[90:], row_group_size=30))
    threads = threading.active_count()
    found = [row for batch in iter_batches_unordered(shards, SCHEMA.names) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["instance_id"]) == rows
    stopped = iter_batches_unordered(shards, SCHEMA.names)
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    rows[150]["FAIL_TO_PASS"] = ["a", None]
    write_shard(shards[1], rows[90:], row_group_size=30)
    with pytest.raises(UserError, match=r"b\.parquet has a null inside a list of the column FAIL_TO_PASS"):
        list(iter_batches_unordered(shards, SCHEMA.names))
    assert threading.active_count() == threads


@pytest.mark.parametrize("dictionary_bytes", [1 << 20, 300])
def test_encoded_lists_hold_the_same_tests_also_where_the_file_ends_its_dictionary(
    tmp_path: Path, dictionary_bytes: int
) -> None:
    rows = [make_row(number, PASS_TO_PASS=[f"t{number}-{i}" for i in range(30)]) for number in range(500)]
    options = {"dictionary_pagesize_limit": dictionary_bytes, "data_page_size": 500, "write_batch_size": 8}
    shard = write_shard(tmp_path / "a.parquet", rows, row_group_size=250, **options)
    columns = ("instance_id", "PASS_TO_PASS")
    batches = list(iter_batches_unordered([shard], columns, encoded_lists=True))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["instance_id"]) == [
        {name: row[name] for name in columns} for row in rows
    ]
    assert all(pa.types.is_dictionary(batch.column(1).values.type) for batch in batches)


def test_large_types_and_foreign_metadata_are_read_as_the_plain_ones(tmp_path: Path) -> None:
    large = pa.schema(
        [
            pa.field(f.name, pa.large_list(pa.large_string()) if f.type == STRINGS else pa.large_string())
            for f in SCHEMA
        ],
        metadata={"huggingface": "{}"},
    )
    path = write_shard(tmp_path / "a.parquet", [make_row(1)], large)
    check_schema(path)
    (batch,) = iter_batches([path], SCHEMA.names)
    assert batch.schema.equals(SCHEMA, check_metadata=True)


ENCODED = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize("encoded_lists", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        *(pa.list_(pa.null()), pa.large_list(pa.null()), pa.list_(ENCODED), pa.large_list(ENCODED)),
        *(pa.list_(pa.string(), 1), pa.list_(pa.string_view())),
    ],
    ids=str,
)
def test_columns_without_a_value_and_encoded_ones_are_read_as_declared(
    tmp_path: Path, kind: pa.DataType, encoded_lists: bool
) -> None:
    schema = replace_field("PASS_TO_PASS", pa.field("PASS_TO_PASS", kind))
    for name in ("image_name", "repo"):
        schema = schema.set(schema.get_field_index(name), pa.field(name, ENCODED))
    schema = schema.set(schema.get_field_index("problem_statement"), pa.field("problem_statement", pa.null()))
    tests = [] if pa.types.is_null(kind.value_type) else ["t.py::b"]
    rows = [make_row(number, PASS_TO_PASS=tests, problem_statement=None) for number in range(3)]
    path = write_shard(tmp_path / "a.parquet", rows, schema)
    check_schema(path)
    batches = list(iter_batches_unordered([path], SCHEMA.names, encoded_lists=encoded_lists))
    assert [row for batch in batches for row in batch.to_pylist()] == rows
    if not encoded_lists:
        assert all(batch.schema.equals(SCHEMA, check_metadata=True) for batch in batches)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("FAIL_TO_PASS", {"FAIL_TO_PASS": None}, "has a row without FAIL_TO_PASS"),
        ("instance_id", {"instance_id": None}, "has a row without instance_id"),
    ],
)
def test_a_column_without_a_value_is_refused_where_none_may_be_null(
    tmp_path: Path, name: str, changes: dict[str, object], message: str
) -> None:
    schema = replace_field(name, pa.field(name, pa.null()))
    path = write_shard(tmp_path / "a.parquet", [make_row(1, **changes)], schema)
    with pytest.raises(UserError, match=rf"a\.parquet {message}"):
        list(read_tasks([path]))


@pytest.mark.parametrize(
    ("schema", "changes", "message"),
    [
        (replace_field("repo"), {}, "lacks the column repo"),
        (
            replace_field("FAIL_TO_PASS", pa.field("FAIL_TO_PASS", ENCODED)),
            {"FAIL_TO_PASS": '["t.py::a"]'},
            "has JSON text instead of lists in the column FAIL_TO_PASS",
        ),
        (
            replace_field("image_name", pa.field("image", pa.string())),
            {"image": "x"},
            "lacks the column image_name and has the unknown column image",
        ),
        (
            replace_field("repo", pa.field("repo", pa.string()), pa.field("base_commit", pa.string())),
            {"base_commit": "x"},
            "has the unknown column base_commit",
        ),
        (
            replace_field("FAIL_TO_PASS", pa.field("FAIL_TO_PASS", pa.string())),
            {"FAIL_TO_PASS": '["t.py::a"]'},
            "has JSON text instead of lists in the column FAIL_TO_PASS",
        ),
        (
            replace_field("PASS_TO_PASS", pa.field("PASS_TO_PASS", pa.list_(pa.int64()))),
            {"PASS_TO_PASS": [1]},
            r"has the type list<.*int64.*> instead of list<.*string> in the column PASS_TO_PASS",
        ),
        (
            replace_field("patch", pa.field("patch", pa.binary())),
            {"patch": b"x"},
            "has the type binary instead of string in the column patch",
        ),
        (SCHEMA, {"PASS_TO_PASS": ["t.py::b", None]}, "has a null inside a list of the column PASS_TO_PASS"),
        (SCHEMA, {"FAIL_TO_PASS": None}, "has a row without FAIL_TO_PASS"),
    ],
)
def test_a_shard_of_another_shape_is_refused(
    tmp_path: Path, schema: pa.Schema, changes: dict[str, object], message: str
) -> None:
    path = write_shard(tmp_path / "bad.parquet", [make_row(1), make_row(2, **changes)][1:], schema)
    with pytest.raises(UserError, match=rf"bad\.parquet {message}") as caught:
        check_schema(path)
    assert "\n" not in str(caught.value)


def test_a_null_far_down_the_shard_is_found(tmp_path: Path) -> None:
    rows = [make_row(number) for number in range(1200)]
    rows[1111]["FAIL_TO_PASS"] = ["t.py::a", None]
    with pytest.raises(UserError, match="null inside a list of the column FAIL_TO_PASS"):
        check_schema(write_shard(tmp_path / "a.parquet", rows))


@pytest.mark.parametrize("name", ["instance_id", "image_name", "patch", "repo"])
def test_only_the_statement_may_be_null(tmp_path: Path, name: str) -> None:
    path = write_shard(
        tmp_path / "a.parquet", [make_row(1, problem_statement=None), make_row(2, **{name: None})]
    )
    with pytest.raises(UserError, match=f"has a row without {name}"):
        list(read_tasks([path]))


def test_an_id_in_two_shards_names_both(tmp_path: Path) -> None:
    first = write_shard(tmp_path / "one.parquet", [make_row(1), make_row(2)])
    second = write_shard(tmp_path / "two.parquet", [make_row(3), make_row(1)])
    message = f"{re.escape(make_row(1)['instance_id'])} is in .*one.parquet and again in .*two.parquet"
    for shards in ([first, second], [second, first]):
        with pytest.raises(UserError, match=message):
            list(iter_batches(shards, ("instance_id",)))
    with pytest.raises(UserError, match=r"is in .*one\.parquet and again in .*one\.parquet"):
        list(iter_batches([first, first], ("instance_id",)))


def test_absent_and_damaged_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.parquet does not exist"):
        check_schema(tmp_path / "none.parquet")
    whole = write_shard(tmp_path / "a.parquet", [make_row(number) for number in range(50)])
    data = whole.read_bytes()
    whole.write_bytes(data[:-20])
    with pytest.raises(UserError, match="is no readable parquet file"):
        check_schema(whole)
    whole.write_bytes(b"")
    with pytest.raises(UserError, match="is no readable parquet file"):
        check_schema(whole)


def test_statements_with_unicode_line_ends_keep_their_bytes(tmp_path: Path) -> None:
    """U+2028, U+2029 and U+0085 are text: ten rows stay ten rows through parquet and JSON lines."""
    rows = list(read_jsonl(UNICODE_ROWS))
    assert len(rows) == 10
    path = write_shard(tmp_path / "a.parquet", rows)
    tasks = list(read_tasks([path]))
    write_jsonl(tmp_path / "a.jsonl", [task.to_row() for task in tasks])
    again = [Task.from_row(row) for row in read_jsonl(tmp_path / "a.jsonl")]
    assert again == tasks
    digests = {
        index: hashlib.sha256(task.problem_statement.encode()).hexdigest()
        for index, task in enumerate(again)
        if task.problem_statement
    }
    assert digests[1].startswith("a6b5415faaeb4f84")
    assert digests == {
        index: hashlib.sha256(row["problem_statement"].encode()).hexdigest()
        for index, row in enumerate(rows)
        if row["problem_statement"]
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"FAIL_TO_PASS": '["a"]'}, "has a FAIL_TO_PASS that is no list of strings"),
        ({"PASS_TO_PASS": ["a", None]}, "has a PASS_TO_PASS that is no list of strings"),
        ({"patch": None}, "has a patch that is no string"),
        ({"problem_statement": 1}, "has a problem_statement that is no string"),
    ],
)
def test_a_bad_json_row_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=f"row 7 {message}"):
        Task.from_row(make_row(1, **changes), "row 7")
    with pytest.raises(UserError, match="row 7 lacks repo"):
        Task.from_row({name: value for name, value in make_row(1).items() if name != "repo"}, "row 7")


def test_writing_twice_gives_the_same_bytes_and_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pylist([make_row(1)], schema=SCHEMA)
    write_parquet(tmp_path / "d" / "a.parquet", SCHEMA, [batch])
    first = (tmp_path / "d" / "a.parquet").read_bytes()

    def broken():
        yield batch
        raise UserError("stopped")

    with pytest.raises(UserError, match="stopped"):
        write_parquet(tmp_path / "d" / "a.parquet", SCHEMA, broken())
    assert (tmp_path / "d" / "a.parquet").read_bytes() == first
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["a.parquet"]
    write_parquet(tmp_path / "d" / "a.parquet", SCHEMA, [batch])
    assert (tmp_path / "d" / "a.parquet").read_bytes() == first


def test_images_of_a_release(tmp_path: Path) -> None:
    names = ["swesmith/b", "swesmith/a", "swesmith/b"]
    path = write_shard(tmp_path / "a.parquet", [make_row(i, image_name=name) for i, name in enumerate(names)])
    assert needed([path]) == {"a": "swesmith/a", "b": "swesmith/b"}
