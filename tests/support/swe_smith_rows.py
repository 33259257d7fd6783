"""SWE-smith rows, shards and scripts for tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lightning_smith.release.columns import SCHEMA

SCRIPTS = Path(__file__).parents[2] / "scripts"
IMAGE = "swesmith/swesmith.x86_64.acme_1776_widget.0badcafe"


def make_row(number: int, **changes: Any) -> dict[str, Any]:
    """A valid row; `changes` replaces columns."""
    row = {
        "instance_id": f"acme__widget.0badcafe.func_pm_x__{number:08x}",
        "patch": "--- a/w.py\n+++ b/w.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
        "FAIL_TO_PASS": ["t.py::a"],
        "PASS_TO_PASS": ["t.py::b"],
        "image_name": IMAGE,
        "repo": "swesmith/acme__widget.0badcafe",
        "problem_statement": f"The widget number {number} is broken.",
    }
    return {**row, **changes}


def write_shard(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA, **options: Any) -> Path:
    """Write rows as a parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, **options)
    return path


def load_script(name: str) -> ModuleType:
    """Return the module of the script of this name, in whichever folder below `scripts/`."""
    (path,) = SCRIPTS.rglob(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"script_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
