"""SWE-smith rows: the columns, checks of a release's shards, and reading them a batch of rows at a time.

    for batch in iter_batches(shards, ("instance_id", "problem_statement")): ...
    for task in read_tasks([Path("data/candidates.parquet")]): ...

The release of 59,136 rows takes 5.2 GB once decoded, most of it test ids. So nothing here holds more than one
batch of the columns that were asked for. The columns keep SWE-smith's names; `patch` is the diff that
introduces the bug.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file

LIST_COLUMNS = ("FAIL_TO_PASS", "PASS_TO_PASS")
SCHEMA = pa.schema(
    [
        pa.field("instance_id", pa.string()),
        pa.field("patch", pa.string()),
        pa.field("FAIL_TO_PASS", pa.list_(pa.string())),
        pa.field("PASS_TO_PASS", pa.list_(pa.string())),
        pa.field("image_name", pa.string()),
        pa.field("repo", pa.string()),
        pa.field("problem_statement", pa.string()),
    ]
)
"""Only problem_statement may be null; a list may be empty but holds no null.

Files may have large or dictionary-encoded types instead. A writer that guesses types calls a column without a value
null, and lists that are all empty lists of nulls: both are read as the declared type.
"""

BATCH_ROWS, BATCH_TESTS, BATCH_ENCODED_TESTS = 1024, 200_000, 1_000_000
"""What is decoded at a time: rows at most, and on average entries of the list columns, some 14 MB of them or, as
numbers of a dictionary, 4 MB."""

THREADS = 2
"""Row groups decoded side by side where the order does not matter; each costs some 60 MB."""

READ_BYTES = 1 << 18
"""Read from a file at a time; pyarrow's default is to read every column of the whole file ahead."""


@dataclass(frozen=True)
class Task:
    """One row."""

    instance_id: str
    """Names the branch of the task in its image as well."""
    patch: str
    """Introduces the bug; the gold patch is its reverse."""
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]
    image_name: str
    repo: str
    problem_statement: str | None

    @classmethod
    def from_row(cls, row: dict[str, Any], where: str = "a task") -> Task:
        """Read the seven columns of a row, others are ignored; `where` names it in a UserError."""
        values: dict[str, Any] = {}
        for name in SCHEMA.names:
            if name not in row:
                raise UserError(f"{where} lacks {name}: it is not a SWE-smith row")
            value = row[name]
            if name in LIST_COLUMNS:
                if not isinstance(value, list) or not all(isinstance(test, str) for test in value):
                    raise UserError(f"{where} has a {name} that is no list of strings")
                value = tuple(value)
            elif not isinstance(value, str) and not (value is None and name == "problem_statement"):
                raise UserError(f"{where} has a {name} that is no string")
            values[name] = value
        return cls(**values)

    def to_row(self) -> dict[str, Any]:
        """Plain values for a parquet or JSON row, in the order of the columns."""
        row = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**row, **{name: list(row[name]) for name in LIST_COLUMNS}}


def check_schema(path: Path) -> None:
    """UserError if a file is not a SWE-smith shard: its columns, their types, a null inside a list.

    Reads the footer, then the two list columns a batch at a time.
    """
    for _ in iter_batches([path], LIST_COLUMNS):
        pass


def iter_batches(
    shards: Iterable[Path],
    columns: Sequence[str],
    *,
    wanted: Set[str] | None = None,
    whole_batches: bool = False,
    batch_rows: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Batches of `columns` from all shards, in order of file name, whatever order they are given in.

    With `wanted`, only the rows of these instance ids; row groups without any are not decoded. With `whole_batches`
    as well, other rows of the same batches too: no list has to be copied to leave them out. Raise UserError for a
    file that is no SWE-smith shard (`check_schema`), for a null where none may be, and, if `instance_id` is among the
    columns, for an id that two rows share, with the shards of both.
    """
    if wanted is not None and "instance_id" not in columns:
        raise ValueError("rows are wanted by an instance_id that is not read")
    for group in _row_groups(shards, columns, wanted):
        yield from _batches(group, columns, wanted, whole_batches, batch_rows)


def iter_batches_unordered(
    shards: Iterable[Path],
    columns: Sequence[str],
    *,
    wanted: Set[str] | None = None,
    whole_batches: bool = False,
    encoded_lists: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `iter_batches` in whatever order they come: THREADS row groups are decoded side by side.

    With `encoded_lists`, lists come with their strings dictionary-encoded, which takes half the time to decode where
    the file has them so; their type is then not SCHEMA's.
    """
    groups = iter(list(_row_groups(shards, columns, wanted)))
    lock, stopped = threading.Lock(), threading.Event()
    ready: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(maxsize=1)

    def decode() -> None:
        try:
            while not stopped.is_set():
                with lock:
                    group = next(groups, None)
                if group is None:
                    break
                for batch in _batches(group, columns, wanted, whole_batches, None, encoded_lists):
                    ready.put(batch)
                    if stopped.is_set():
                        break
        except BaseException as error:
            ready.put(error)
        ready.put(None)

    threads = [threading.Thread(target=decode, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    running = len(threads)
    try:
        while running:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        stopped.set()
        while any(thread.is_alive() for thread in threads):
            with suppress(queue.Empty):
                ready.get(timeout=0.05)


def _row_groups(
    shards: Iterable[Path], columns: Sequence[str], wanted: Set[str] | None
) -> Iterator[tuple[Path, int]]:
    """Yield the row groups to decode, in order of file name; checks columns and, if they are read, all ids."""
    seen: dict[str, Path] = {}
    for path in sorted(shards, key=lambda shard: (shard.name, str(shard))):
        with _open_shard(path) as file:
            _check_columns(path, file.schema_arrow)
            for group in range(file.num_row_groups):
                if "instance_id" not in columns or _has_wanted(path, file, group, wanted, seen):
                    yield path, group


def _batches(
    place: tuple[Path, int],
    columns: Sequence[str],
    wanted: Set[str] | None,
    whole_batches: bool,
    batch_rows: int | None,
    encoded_lists: bool = False,
) -> Iterator[pa.RecordBatch]:
    path, group = place
    # pyarrow decodes to one dictionary within a row group, not across several.
    with _open_shard(path, encoded=LIST_COLUMNS if encoded_lists else ()) as file:
        size = batch_rows or _batch_rows(file.metadata.row_group(group), columns, encoded_lists)
        # One thread: several decode whole columns side by side, for more memory and little time.
        for batch in file.iter_batches(size, [group], list(columns), use_threads=False):
            declared = _as_declared(batch, columns, encoded_lists)
            _check_nulls(path, declared)
            rows = declared if whole_batches else _only(declared, wanted)
            if rows.num_rows:
                yield rows


def read_tasks(shards: Iterable[Path]) -> Iterator[Task]:
    """Yield the rows as `Task`, one at a time; errors as in `iter_batches`."""
    for batch in iter_batches(shards, SCHEMA.names):
        for row in batch.to_pylist():
            yield Task.from_row(row, f"row {row['instance_id']}")


def write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches as one parquet file, atomically; the same batches give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sha256_sums(folder: Path, names: Iterable[str]) -> str:
    """Return what `sha256sum` prints for files below `folder`: a line `<hash>  <name>` for each."""
    return "".join(f"{sha256_file(folder / name)}  {name}\n" for name in sorted(names))


@contextmanager
def _open_shard(path: Path, encoded: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)
        if encoded:
            leaves = {file.schema.column(index).path for index in range(len(file.schema.names))}
            stored = [leaf for leaf in leaves if leaf.partition(".")[0] in encoded]
            file.close()
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES, read_dictionary=stored)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: download the release first") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"{path} is no readable parquet file ({_first_line(error)}): download it again"
        ) from None
    with file:
        try:
            yield file
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is damaged ({_first_line(error)}): download it again") from None


def _as_declared(batch: pa.RecordBatch, columns: Sequence[str], encoded_lists: bool) -> pa.RecordBatch:
    """Return the columns in the order asked for, without the file's metadata, with the types of SCHEMA or encoded
    lists.
    """
    arrays = [
        column
        if encoded_lists and name in LIST_COLUMNS and _has_encoded_strings(column.type)
        else column.cast(SCHEMA.field(name).type)
        for name, column in ((name, batch.column(name)) for name in columns)
    ]
    return pa.record_batch(arrays, names=list(columns))


def _has_encoded_strings(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists with offsets whose strings are dictionary-encoded."""
    has_offsets = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return has_offsets and pa.types.is_dictionary(kind.value_type)


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0].rstrip(".")


def _check_columns(path: Path, schema: pa.Schema) -> None:
    missing = [name for name in SCHEMA.names if name not in schema.names]
    unknown = [name for name in schema.names if name not in SCHEMA.names]
    if missing and unknown:
        raise UserError(
            f"{path} lacks the column {missing[0]} and has the unknown column {unknown[0]}: "
            "it is of another revision of the release than the one pinned in config.yaml"
        )
    if missing or unknown:
        what = f"lacks the column {missing[0]}" if missing else f"has the unknown column {unknown[0]}"
        raise UserError(f"{path} {what}: it is of another revision than the one pinned in config.yaml")
    for name in SCHEMA.names:
        found, count = schema.field(name).type, schema.names.count(name)
        if count > 1:
            raise UserError(f"{path} has the column {name} {count} times: it is no SWE-smith shard")
        if name in LIST_COLUMNS and _is_string(found):
            raise UserError(
                f"{path} has JSON text instead of lists in the column {name}: it is no SWE-smith shard"
            )
        wanted = _is_list_of_strings if name in LIST_COLUMNS else _is_string
        # What has no type has no values either: whether they may be null is checked with the rows.
        if not (pa.types.is_null(found) or wanted(found)):
            raise UserError(
                f"{path} has the type {found} instead of {SCHEMA.field(name).type} in the column {name}"
            )


def _is_string(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)


def _is_list_of_strings(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists of strings, or of lists without a value."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(kind) for is_list in lists):
        return False
    return _is_string(kind.value_type) or pa.types.is_null(kind.value_type)


def _check_nulls(path: Path, batch: pa.RecordBatch) -> None:
    for name in batch.schema.names:
        column = batch.column(name)
        if column.null_count and name != "problem_statement":
            raise UserError(f"{path} has a row without {name}: it is no SWE-smith shard")
        if name in LIST_COLUMNS and column.flatten().null_count:
            raise UserError(f"{path} has a null inside a list of the column {name}: it is no SWE-smith shard")


def _batch_rows(group: pq.RowGroupMetaData, columns: Sequence[str], encoded_lists: bool) -> int:
    """Return how many rows of a row group to decode at a time, on average of its rows."""
    chunks = (group.column(index) for index in range(group.num_columns))
    lists = set(columns) & set(LIST_COLUMNS)
    tests = sum(chunk.num_values for chunk in chunks if chunk.path_in_schema.partition(".")[0] in lists)
    most = BATCH_ENCODED_TESTS if encoded_lists else BATCH_TESTS
    return max(1, min(BATCH_ROWS, most * group.num_rows // max(1, tests)))


def _has_wanted(
    path: Path, file: pq.ParquetFile, group: int, wanted: Set[str] | None, seen: dict[str, Path]
) -> bool:
    """Return whether a row group holds a wanted row; refuses an id that is in `seen`, and puts its ids there."""
    column = file.read_row_group(group, columns=["instance_id"], use_threads=False).column(0)
    if column.null_count:
        raise UserError(f"{path} has a row without instance_id: it is no SWE-smith shard")
    found = False
    for instance_id in column.to_pylist():
        if instance_id in seen:
            raise UserError(
                f"instance {instance_id} is in {seen[instance_id]} and again in {path}: give each shard once"
            )
        seen[instance_id] = path
        found = found or wanted is None or instance_id in wanted
    return found


def _only(batch: pa.RecordBatch, wanted: Set[str] | None) -> pa.RecordBatch:
    if wanted is None:
        return batch
    mask = [name in wanted for name in batch.column("instance_id").to_pylist()]
    return batch if all(mask) else batch.filter(pa.array(mask, pa.bool_()))
