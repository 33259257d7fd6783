"""Held-out tasks and predictions: which instances are evaluated, and the patches as bytes.

A prediction is a line of preds.jsonl with swebench's keys instance_id, model_name_or_path and model_patch.
Its patch holds the bytes of the rollout's diff, unchanged: a diff whose trailing blank lines are stripped
no longer applies. An instance without a line has no prediction, which is another thing than an empty patch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_jsonl, write_atomic

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
        """Return the official keys. Bytes that are not UTF-8 become lone surrogates, which `from_dict` turns
        back."""
        return {
            "instance_id": self.instance_id,
            "model_name_or_path": self.model,
            "model_patch": self.patch.decode("utf-8", "surrogateescape"),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Prediction:
        """Read the official keys; a model_patch of null is an empty patch. Raise UserError."""
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
    """Read preds.jsonl by instance. Raise UserError for an id given twice or not among `instance_ids`."""
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
    """Return the hexadecimal sha256 over ids and patches: what a grading run is named by, so that nothing stale is
    read."""
    digest = hashlib.sha256()
    for instance_id in sorted(predictions):
        prediction = predictions[instance_id]
        parts = (instance_id.encode(), prediction.model.encode(), hashlib.sha256(prediction.patch).digest())
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
