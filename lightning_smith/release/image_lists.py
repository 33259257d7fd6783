"""Which images are needed: the ones that data sets name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_jsonl
from lightning_smith.repositories.names import add_name, image_key

_COLUMNS = ("image_name", "image")
"""SWE-smith's column, and the evaluation set's."""


def names_in(dataset: Path, limit: int | None = None) -> list[str]:
    """Return distinct image names of a data set (`.jsonl` or `.parquet`), in its order. Raise UserError for a row
    without one.

    `limit`: the first so many rows.
    """
    rows = _parquet(dataset) if dataset.suffix == ".parquet" else _jsonl(dataset)
    names = list(dict.fromkeys(islice(rows, limit)))
    if not names:
        raise UserError(f"{dataset} has no rows: give a data set of tasks")
    return names


def needed(
    datasets: Iterable[Path], only: Sequence[str] | None = None, limit: int | None = None
) -> dict[str, str]:
    """Return the image names by key, sorted; `only` are keys or names.

    Raise UserError for one that no data set names, and for two names of one key.
    """
    found: dict[str, str] = {}
    for dataset in datasets:
        for name in names_in(dataset, limit):
            try:
                add_name(found, name)
            except UserError as error:
                raise UserError(f"{dataset}: {error}") from None
    keys = sorted(found) if only is None else choose(found, only)
    return {key: found[key] for key in keys}


def choose(names: Mapping[str, str], only: Sequence[str]) -> list[str]:
    """Return keys of the images named in `only`, of all if that is empty. Raise UserError for one that no task has."""
    for name in only:
        if image_key(name) not in names:
            raise UserError(f"images.only names {name}, which is the image of no task: correct it")
    wanted = {image_key(name) for name in only} or names
    return sorted(key for key in names if key in wanted)


def read_names(path: Path) -> dict[str, str]:
    """Return the image names by key of a table that `write_names` wrote."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: run the rule that makes it first (uv run snakemake {path})")
    pairs = (line.split("\t") for line in path.read_text().splitlines())
    return {pair[0]: pair[-1] for pair in pairs}


def names_text(names: dict[str, str]) -> str:
    """Return the table of `read_names`: key and name a line."""
    return "".join(f"{key}\t{name}\n" for key, name in names.items())


def _jsonl(path: Path) -> Iterator[str]:
    for number, row in enumerate(read_jsonl(path), start=1):
        name = next((row[column] for column in _COLUMNS if row.get(column)), None)
        if not isinstance(name, str):
            raise UserError(
                f"{path} row {number} ({row.get('instance_id')}) has no image_name: make the file again"
            )
        yield name


def _parquet(path: Path) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            column = next((name for name in _COLUMNS if name in file.schema_arrow.names), None)
            if column is None:
                raise UserError(f"{path} has no column image_name or image: it is no data set of tasks")
            number = 0
            for batch in file.iter_batches(columns=[column]):
                for name in batch.column(0).to_pylist():
                    number += 1
                    if not name or not isinstance(name, str):
                        raise UserError(f"{path} row {number} has no {column}: make the file again")
                    yield name
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: run the rule that makes it first (uv run snakemake {path})"
        ) from None
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UserError(f"{path} is no parquet file, or a damaged one ({reason}): make it again") from None
