"""Held-out tasks and predictions: which instances are evaluated, and the patches as bytes.

A prediction is a line of preds.jsonl with swebench's keys instance_id, model_name_or_path and model_patch.
Its patch holds the bytes of the rollout's diff, unchanged: a diff whose trailing blank lines are stripped
no longer applies. An instance without a line has no prediction, which is another thing than an empty patch.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.errors import UserError
from lightning_smith.files import read_jsonl, write_atomic
from lightning_smith.rollout.task import test_ids

TASK_COLUMNS = (
    "repo",
    "instance_id",
    "base_commit",
    "patch",
    "problem_statement",
    "version",
    "FAIL_TO_PASS",
    "PASS_TO_PASS",
    "eval_script",
    "log_parser",
    "eval_type",
    "image",
)
"""Columns of swebench's version 5 format that the evaluation reads; older files lack the last four."""

KEYS = ("instance_id", "model_name_or_path", "model_patch")


@dataclass(frozen=True, slots=True)
class Prediction:
    """One instance's patch. `patch` is the diff's bytes; empty if the rollout did not submit one."""

    instance_id: str
    model: str
    patch: bytes

    @property
    def empty(self) -> bool:
        """Whether there is no patch; the official report counts these apart from unresolved ones."""
        return not self.patch

    def to_dict(self) -> dict[str, str]:
        """The official keys. Bytes that are not UTF-8 become lone surrogates, which `from_dict` turns
        back."""
        return {
            "instance_id": self.instance_id,
            "model_name_or_path": self.model,
            "model_patch": self.patch.decode("utf-8", "surrogateescape"),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Prediction:
        """Read the official keys; a model_patch of null is an empty patch. Raises UserError."""
        instance_id, model, patch = (row.get(key) for key in KEYS)
        if not isinstance(instance_id, str) or not isinstance(model, str):
            raise UserError(f"a prediction needs the keys {', '.join(KEYS)}, this one has {', '.join(row)}")
        if patch is not None and not isinstance(patch, str):
            raise UserError(f"model_patch of {instance_id} is a {type(patch).__name__}, not text")
        try:
            return cls(instance_id, model, (patch or "").encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise UserError(f"model_patch of {instance_id} holds no valid text ({error.reason})") from None


def write_predictions(path: Path | str, predictions: Iterable[Prediction]) -> None:
    """Write preds.jsonl, ordered by instance, in ASCII: no reader can split a line at a character of a
    patch."""
    rows = sorted(predictions, key=lambda prediction: prediction.instance_id)
    write_atomic(path, "".join(json.dumps(row.to_dict()) + "\n" for row in rows))


def read_predictions(path: Path | str, instance_ids: Iterable[str]) -> dict[str, Prediction]:
    """Read preds.jsonl by instance; raises UserError for an id given twice or not among `instance_ids`."""
    wanted = set(instance_ids)
    predictions: dict[str, Prediction] = {}
    for row in read_jsonl(path):
        prediction = Prediction.from_dict(row)
        if prediction.instance_id in predictions:
            raise UserError(f"{path} holds two predictions for {prediction.instance_id}: keep one")
        if prediction.instance_id not in wanted:
            raise UserError(
                f"{path} predicts {prediction.instance_id}, which is not among the evaluated instances"
            )
        predictions[prediction.instance_id] = prediction
    return predictions


def predictions_hash(predictions: Mapping[str, Prediction]) -> str:
    """Hexadecimal sha256 over ids and patches: what a grading run is named by, so that nothing stale is
    read."""
    digest = hashlib.sha256()
    for instance_id in sorted(predictions):
        prediction = predictions[instance_id]
        parts = (instance_id.encode(), prediction.model.encode(), hashlib.sha256(prediction.patch).digest())
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def read_tasks(path: Path | str) -> list[dict[str, Any]]:
    """Rows of the held-out parquet, in its order.

    Raises UserError if a column is absent, an id occurs twice, or a row's tests are no lists of ids, of which
    FAIL_TO_PASS has one at least: the harness counts an instance without any as resolved.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: run the rule that makes it first") from None
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path} is not a readable parquet file ({error}): make or download it again"
        ) from None
    if absent := [column for column in TASK_COLUMNS if column not in table.column_names]:
        raise UserError(
            f"{path} lacks the column {absent[0]}: swebench 5 needs its version 5 format "
            "(SWE-bench/SWE-bench_Verified, not princeton-nlp/SWE-bench_Verified)"
        )
    rows = table.to_pylist()
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if row["instance_id"] in seen:
            raise UserError(f"{path} holds {row['instance_id']} twice")
        seen.add(row["instance_id"])
        for column in ("FAIL_TO_PASS", "PASS_TO_PASS"):
            try:
                empty = not test_ids(row[column])
            except ValueError:
                raise UserError(
                    f"{path} row {number} ({row['instance_id']}) has a {column} that is no list of test ids: "
                    "make or download it again"
                ) from None
            if empty and column == "FAIL_TO_PASS":
                raise UserError(
                    f"{path} row {number} ({row['instance_id']}) has no FAIL_TO_PASS test, so any patch would "
                    "resolve it: leave the row out"
                )
    return rows


def choose_tasks(rows: Sequence[dict[str, Any]], count: int | None, seed: int) -> list[dict[str, Any]]:
    """`count` rows drawn without replacement (all if None), in the order of `rows`; the same seed draws the
    same.

    Drawing from the sorted ids makes the choice independent of the file's order. Raises UserError if there
    are fewer.
    """
    if count is None:
        return list(rows)
    if not 0 < count <= len(rows):
        raise UserError(f"{count} held-out instances were asked for and the data set has {len(rows)}")
    chosen = set(random.Random(seed).sample(sorted(row["instance_id"] for row in rows), count))
    return [row for row in rows if row["instance_id"] in chosen]
