"""The probe through real services: killed, run again, and what its log says."""

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gateway_stack import AGENT, FOLDER, Mark, StubPolicy
from whole_settings import agent_settings

from lightning_smith.config.models import Policy, Probe
from lightning_smith.config.stages import ProbeStage
from lightning_smith.contracts.outcome import rollout_seed
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, read_jsonl, write_jsonl
from lightning_smith.core.work_folder import settings_folder
from lightning_smith.probe.run import ProbeSettings, run_probe

pytestmark = pytest.mark.e2e


def candidates(folder: Path, names: list[str]) -> Path:
    write_jsonl(folder / "tasks.jsonl", ({"instance_id": name, "patch": ""} for name in names))
    return folder / "tasks.jsonl"


PROBE = Probe(policy="policy", tasks=None, samples=4, temperature=1.0, seed=5, max_invalid_fraction=0.0)


def settings(
    folder: Path,
    mark: Mark,
    probe: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    **changes: Any,
) -> ProbeSettings:
    """Settings with other values in the sections `probe` and `agent`, or of the run."""
    stage = ProbeStage(
        probe=replace(PROBE, **(probe or {})),
        policy=Policy(kind="dense", model="model", revision=None, max_model_len=1024),
        agent=agent_settings(**{"rollout_timeout_s": 525, "system_template": "Fix.", **(agent or {})}),
        workspace="bwrap",
        tests="image",
        images=folder / "images",
        work=folder / "work",
        logs=folder / "logs",
    )
    run = ProbeSettings(
        stage, folder / "tasks.jsonl", StubPolicy(), 8, agent=AGENT, environment=mark.environment()
    )
    return replace(run, **changes)


RUN = """
import sys
from pathlib import Path
from gateway_stack import Mark
from test_gateway_probe import settings
from lightning_smith.core.errors import run_script
from lightning_smith.probe.run import run_probe
from lightning_smith.core.process import stage_lock
def main():
    folder = Path(sys.argv[1])
    with stage_lock(folder, "probe"):
        run_probe(settings(folder, Mark(sys.argv[2])), sys.argv[3:])
run_script(main)
"""


def test_killed_probe_goes_on_without_repeating(tmp_path: Path) -> None:
    mark, names = Mark(), [f"slow-{i}" for i in range(6)]
    candidates(tmp_path, names)
    command = [sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path), mark.value, *names]
    environment = {**os.environ, "PYTHONPATH": f"{FOLDER}:{Path(__file__).parent}"}
    first = subprocess.Popen(command, env=environment)
    log = (
        settings_folder(tmp_path / "work", settings(tmp_path, mark).deciding(), stage="probe")
        / "rollouts.jsonl"
    )
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_bytes().count(b"\n") < 5:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.wait()
    kept = log.read_bytes()
    log.write_bytes(kept + b'{"instance_id": "slow-')  # as if it had died while it wrote
    subprocess.run(command, env=environment, check=True)
    assert log.read_bytes().startswith(kept)
    records = list(read_jsonl(log))
    keys = [(row["instance_id"], row["sample"]) for row in records]
    assert sorted(keys) == [(name, sample) for name in names for sample in range(4)]
    seeds = [rollout_seed(5, *key, stage="probe") for key in keys]
    assert [row["seed"] for row in records] == seeds
    assert mark.processes() == []
    # With everything done no service starts.
    (tmp_path / "logs/gateway.log").unlink()
    assert len(run_probe(settings(tmp_path, mark), names)) == 24
    assert not (tmp_path / "logs/gateway.log").exists()


def logged(folder: Path) -> list[tuple[int, float, int]]:
    """(turns, temperature, rollouts) of each of a probe's logs."""
    found = []
    for path in (folder / "work").glob("*/rollouts.jsonl"):
        made = read_json(path.parent / "settings.json")
        found.append((made["agent"]["max_turns"], made["temperature"], len(list(read_jsonl(path)))))
    return sorted(found)


def test_settings_changed_between(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark, names = Mark(), [f"ok-{i}" for i in range(3)]
    candidates(tmp_path, names)
    two = {"samples": 2}
    probe = settings(tmp_path, mark, two)
    run_probe(probe, names[:2])
    run_probe(settings(tmp_path, mark, two, {"max_turns": 2}), names[:2])
    assert logged(tmp_path) == [(2, 1.0, 4), (4, 1.0, 4)], "nothing made with 4 turns counts with 2"
    assert "[probe] agent.max_turns is 2 instead of 4: what" in capsys.readouterr().err
    run_probe(settings(tmp_path, mark, two | {"temperature": 0.2}, max_rollouts=4), names[:1])
    assert logged(tmp_path) == [(2, 1.0, 4), (4, 0.2, 2), (4, 1.0, 4)]
    # Back again, with more tasks and samples, and other knobs of speed: only what is new is run.
    records = run_probe(settings(tmp_path, mark, {"samples": 3}, max_rollouts=2, retries=0), names)
    assert logged(tmp_path) == [(2, 1.0, 4), (4, 0.2, 2), (4, 1.0, 9)] and len(records) == 9
    # The same instance as another row.
    write_jsonl(tmp_path / "tasks.jsonl", ({"instance_id": name, "patch": name} for name in names))
    with pytest.raises(UserError, match=r"holds rollouts of ok-0 as another row .* move that folder away"):
        run_probe(probe, names)


def test_lost_tasks_fail_the_probe_which_probes_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, names = Mark(), ["ok-1", "crash-1"]
    candidates(tmp_path, names)
    with pytest.raises(
        UserError,
        match=r"1 of 2 probed tasks are lost.*allowed: 10\.0%.*crash-1 \(0 with a verdict, infra: .*the same",
    ):
        run_probe(settings(tmp_path, mark, {"max_invalid_fraction": 0.1}, retries=0), names)
    records = run_probe(settings(tmp_path, mark, {"max_invalid_fraction": 0.5}, retries=0), names)
    assert [record.valid for record in records] == [False] * 4 + [True] * 4
    assert "warning: 1 of 2 probed tasks are lost" in capsys.readouterr().err
    (log,) = tmp_path.glob("work/*/rollouts.jsonl")
    assert len([row for row in read_jsonl(log) if row["instance_id"] == "ok-1"]) == 4
