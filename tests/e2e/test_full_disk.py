"""A disk that fills up: a small tmpfs. One sentence names the file, and what was whole stays whole."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import COMMIT, HubServer
from swe_smith_rows import make_row, write_shard

from lightning_smith.config.models import Selection
from lightning_smith.config.settings_file import write_settings
from lightning_smith.config.stages import SelectStage
from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.files import append_jsonl, dump_json
from lightning_smith.gateway.rollout_log import RolloutLog
from lightning_smith.release.columns import sha256_sums

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e

ON_SMALL_DISK = (
    'mount -t tmpfs -o size="$2" tmpfs "$1" && shift 2 && "$@"; code=$?; cp -r "$0"/. "$0.kept"; exit $code'
)


def run_on_small_disk(
    disk: Path, *command: str, size: str = "16k", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run with a disk of that size at `disk`; what lies on it afterwards is copied to `<disk>.kept`."""
    disk.mkdir()
    kept = disk.with_name(f"{disk.name}.kept")
    kept.mkdir()
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a user namespace to mount a small disk in")
    return subprocess.run(
        [*inside, "sh", "-c", ON_SMALL_DISK, str(disk), str(disk), size, *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def record(number: int, sample: int = 0) -> RolloutRecord:
    outcome = (Outcome.SOLVED, Outcome.UNSOLVED)[sample % 2]
    reward = float(outcome is Outcome.SOLVED)
    return RolloutRecord(
        f"task-{number:04d}", sample, outcome, reward, bool(reward), 2, 10, 5, 0.1, "policy", "r", "d", 100 + sample
    )  # fmt: skip


def test_an_output_that_does_not_fit_is_absent(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    append_jsonl(log, (record(n, sample).to_dict() for n in range(1000) for sample in range(4)))
    disk = tmp_path / "disk"
    pool = ("all_solved", "mixed", "all_failed")
    selection = Selection(
        mixed_limit=None, all_failed_sample=0, validation_tasks=0, validation_pool=pool, seed=1
    )
    told = SelectStage(selection=selection, samples=4, max_lost_fraction=0.0)
    command = ["scripts/probe/select_by_difficulty.py", "--settings", write_settings(tmp_path, told)]
    command += ["--log", str(log)]
    outputs = ["--out", str(disk / "table.tsv"), "--summary", str(disk / "summary.json")]
    done = run_on_small_disk(disk, sys.executable, *command, *outputs)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: no space left on the disk while writing {disk}/table.tsv: "
        "free some (df -h) and run the same command again\n"
    )
    assert [path.name for path in (tmp_path / "disk.kept").iterdir()] == ["summary.json"]


FILL_LOG = """
import sys
from pathlib import Path
sys.path[:0] = ["tests/support", "tests/e2e"]
from test_full_disk import record
from lightning_smith.core.errors import run_script
from lightning_smith.gateway.rollout_log import RolloutLog

def main():
    log = RolloutLog(Path(sys.argv[1]))
    for number in range(1000):
        log.append(record(number))

run_script(main)
"""


def test_a_log_goes_on_from_its_last_whole_line(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    done = run_on_small_disk(disk, sys.executable, "-c", FILL_LOG, str(disk / "log.jsonl"))
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: no space left on the disk while writing {disk}/log.jsonl: free some"
    )
    kept = tmp_path / "disk.kept" / "log.jsonl"
    line = len(dump_json(record(0).to_dict())) + 1
    whole = kept.stat().st_size // line
    assert whole > 10 and kept.stat().st_size % line, "a part of a line is there"
    log = RolloutLog(kept)
    assert len(log.done()) == whole and kept.stat().st_size == whole * line
    assert log.append(record(whole)) and len(RolloutLog(kept).done()) == whole + 1


@pytest.mark.parametrize("source", ["hub", "folder"])
def test_a_shard_that_does_not_fit_is_absent(tmp_path: Path, source: str) -> None:
    name = "data/train-00000-of-00001.parquet"
    texts = (random.Random(number).randbytes(500_000).hex() for number in range(4))
    rows = [make_row(number, problem_statement=text) for number, text in enumerate(texts)]
    write_shard(tmp_path / "folder" / name, rows)
    (tmp_path / "folder" / "SHA256SUMS").write_text(sha256_sums(tmp_path / "folder", [name]))
    server, disk = HubServer(tmp_path / "folder"), tmp_path / "disk"
    location = {"hub": "acme/release", "folder": str(tmp_path / "folder")}[source]
    command = [
        "scripts/release/download_shard.py",
        "--source",
        source,
        "--location",
        location,
        "--revision",
        COMMIT,
    ]
    where = ["--file", name, "--out", str(disk / "raw" / "shard.parquet")]
    environment = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "hf")}
    done = run_on_small_disk(disk, sys.executable, *command, *where, size="1m", **environment)
    server.close()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: no space left on the disk while writing") and "shard.parquet" in error
    assert list((tmp_path / "disk.kept" / "raw").iterdir()) == []
