"""Runs every attack of the corpus through real rollouts, in each kind of workspace, and through a real gateway."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import tiny_image
import whole_settings
from attack import MARK, SECRET, Attack, Control, Entry, GatewayAttack, controls, corpus
from gateway_stack import Mark, make_stack
from kinds import Kind

from lightning_smith.agent import loop
from lightning_smith.agent.chat import ScriptedModel
from lightning_smith.agent.guard import Decision
from lightning_smith.agent.rollout import Request, Rollout, run_rollout
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.contracts.outcome import Outcome, reward_of
from lightning_smith.contracts.task import RolloutTask
from lightning_smith.core.files import dump_json
from lightning_smith.gateway.launch import Stack
from lightning_smith.grading.audit import Audit
from lightning_smith.grading.grader import grade
from lightning_smith.grading.plan import ImageTests
from lightning_smith.grading.references import References
from lightning_smith.grading.store import GradeStore
from lightning_smith.sandbox import keeper
from lightning_smith.sandbox.bwrap import ResourceLimits
from lightning_smith.sandbox.scratch import Scratch

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

ENTRIES = corpus()
CONTROLS = controls()
STAYING = ("isolation", "lifetime", "pod")
"""Families whose attacks leave something that later runs could meet, so that each has all of its runs."""
TASK = RolloutTask.from_row(tiny_image.row())
LIMITS = ResourceLimits(processes=64, memory_mb=1024, file_mb=32, tmp_mb=32)
AGENT: dict[str, Any] = {
    **whole_settings.AGENT,
    "max_turns": 8,
    "max_tokens": 64,
    "observation_chars": 20_000,
    "rollout_timeout_s": 600,
    "max_format_errors": 1,
    "system_template": "Fix the bug. Reply with one bash block.",
    "instance_template": "{problem_statement}",
}


def parameters(kind: type) -> list[Any]:
    """Entries with attacks of a kind; those that still work are expected to fail their test."""
    found = []
    for entry in ENTRIES:
        if isinstance(entry.attack, kind):
            reason = getattr(entry.attack, "stays_possible", "")
            marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)] if reason else []
            found.append(pytest.param(entry, id=f"{entry.family}-{entry.name}", marks=marks))
    return found


@dataclass(frozen=True)
class OneRoom:
    """The room of a kind of workspace whose only image is the tiny one."""

    kind: Kind

    @property
    def sandbox(self) -> Any:
        return self.kind.sandbox

    def image(self, image_name: str) -> Any:
        return self.kind.image

    def workspace(self, image: Any, branch: str, scratch: Path, *, keep_bytes: int) -> Any:
        return self.kind.open(scratch, keep_bytes=keep_bytes)


class Attacker:
    """A policy with a script, in a kind of workspace whose limits are an attack's."""

    def __init__(
        self, kind: Kind, attack: Attack | Control, store: GradeStore, *, audit_share: float = 1.0
    ) -> None:
        limits = _limits(kind, attack) if isinstance(attack, Attack) else LIMITS
        self.kind, self.store = kind.limited(limits), store
        self.timeout_s, self.audit_share = attack.timeout_s, audit_share

    def roll_out(self, *commands: str) -> Rollout:
        """A whole rollout of a policy that sends these commands and submits."""
        settings = AgentSettings.from_dict(
            {**AGENT, "command_timeout_s": self.timeout_s, "grading_timeout_s": self.timeout_s}
        )
        model = ScriptedModel([f"```bash\n{command}\n```" for command in (*commands, loop.SUBMIT_COMMAND)])
        with Scratch() as folder:
            stage: Any = SimpleNamespace(
                settings=StageSettings(folder, folder, "policy", settings),
                tasks={TASK.instance_id: TASK},
                room=OneRoom(self.kind),
                plans=ImageTests(),
                store=self.store,
                audit=Audit(folder / "audit", self.audit_share),
                references=References(),
            )
            rollout = run_rollout(stage, Request(TASK.instance_id, 0, 1, True), model)
        # Else the controller would end it without a verdict.
        assert rollout.record.grade_s < settings.deadline_s - settings.rollout_timeout_s
        return rollout

    def grade(self, patch: bytes) -> Outcome:
        """Outcome of a patch."""
        with Scratch() as folder:
            graded = grade(
                TASK,
                self.kind.image,
                patch,
                self.store,
                self.kind.sandbox,
                timeout_s=self.timeout_s,
                audit=Audit(folder / "audit", self.audit_share),
            )
        return graded.outcome


def seen_by(rollout: Rollout) -> str:
    """What the policy read after the task's statement."""
    return "\n".join(str(said["content"]) for said in rollout.messages[2:] if said["role"] == "user")


def _limits(kind: Kind, attack: Attack) -> ResourceLimits:
    """Small ones; an attack on the disk is ended when it has taken what it may."""
    disk, limits = os.statvfs(kind.disk), LIMITS
    if attack.room_mb is not None:
        limits = replace(limits, min_free_mb=disk.f_bavail * disk.f_frsize // 2**20 - attack.room_mb)
    if attack.room_files is not None:
        limits = replace(limits, min_free_files=disk.f_favail - attack.room_files)
    return limits


@pytest.fixture(scope="session")
def runs(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> GradeStore:
    """Where gradings find what others of this session ran: right code with altered tests above all."""
    return GradeStore(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def watched(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A harness with secrets in its environment; nothing outside of the workspace may be another one afterwards."""
    monkeypatch.setenv("AGL_KEY", SECRET)
    monkeypatch.setenv("LS_REPORT_TOKEN", SECRET)
    monkeypatch.setenv("AGL_EVENT_URL", f"http://127.0.0.1:1/{SECRET}")
    before = outside(kind)
    yield
    assert left_running() == []
    assert outside(kind) == before
    assert not Path("/tmp/ls-attack-outside").exists()


def outside(kind: Kind) -> dict[str, str]:
    """Hashes of the files of an image, and the names of this process's scratch folders."""
    files = [path for path in getattr(kind.image, "folder", Path("/nowhere")).rglob("*") if path.is_file()]
    hashes = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return hashes | {str(path): "" for path in Path("/dev/shm").glob(f"lightning-smith-{os.getpid()}-*")}


def left_running() -> list[str]:
    """Command lines of what this process started and of what an attack marked; daemon and keeper are neither."""
    children = [process for process in psutil.Process().children() if process.name() != "dockerd"]
    children = [process for process in children if keeper.NAME not in process.cmdline()]
    found = [str(process) for process in children if process.status() != psutil.STATUS_ZOMBIE]
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if MARK in line and "pytest" not in line:
            found.append(line)
    return found


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("entry", parameters(Attack))
def test_attack_earns_nothing(
    entry: Entry,
    kind: Kind,
    runs: GradeStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attack = entry.attack
    assert isinstance(attack, Attack)
    store = GradeStore(tmp_path) if entry.family in STAYING else runs
    # No lot: what passes is tested again for what the scan finds in it, or is paid.
    attacker = Attacker(kind, attack, store, audit_share=0)
    if not attack.guarded:
        # The guard is courtesy: what it would refuse must come to nothing without it.
        monkeypatch.setattr(loop, "inspect", lambda command: Decision())
    if attack.patch is not None:
        outcome = attacker.grade(attack.patch)
        assert outcome in attack.outcomes and reward_of(outcome) == 0.0
        return
    attempt = attacker.roll_out(*attack.commands)
    record, seen = attempt.record, seen_by(attempt)
    assert not re.search(r"^GAINED.*", seen, re.M), seen
    assert SECRET not in seen
    assert re.search(attack.shows, seen), seen
    ran = "TRIED\n" in seen or attempt.patch or attempt.left_out or attack.shows
    assert ran, f"it never ran:\n{seen}"
    assert record.outcome in attack.outcomes, f"{record.outcome} ({record.error}):\n{seen}"
    dump_json(record.to_dict()).encode()
    # What has no reward is left out of its group, and so spared a failure's advantage.
    assert record.reward == (None if record.outcome is Outcome.GRADER_ERROR else 0.0)
    if attack.with_fix is not None:
        fixed = attacker.roll_out(*attack.commands, tiny_image.FIX).record
        assert fixed.outcome is attack.with_fix, fixed.error


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in CONTROLS])
def test_control_is_solved(entry: Entry, kind: Kind, tmp_path: Path) -> None:
    """Tests cannot tell it from right code, however often they run."""
    assert isinstance(entry.attack, Control)
    attacker = Attacker(kind, entry.attack, GradeStore(tmp_path))
    record = attacker.roll_out(*entry.attack.commands).record
    assert record.outcome is Outcome.SOLVED, record.error


def test_the_fix_is_solved(kind: Kind, tmp_path: Path) -> None:
    """What every attack is measured against: the same rollout, done honestly."""
    attacker = Attacker(kind, Attack(), GradeStore(tmp_path))
    assert attacker.roll_out(tiny_image.FIX).record.reward == 1
    assert attacker.roll_out("true").record.reward == 0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    key = f"sk-run-{secrets.token_hex(16)}"
    with make_stack(tmp_path_factory.mktemp("stack"), Mark(), key=key) as stack:
        yield stack


@pytest.mark.parametrize("entry", parameters(GatewayAttack))
def test_gateway_attack_has_no_effect(entry: Entry, stack: Stack) -> None:
    assert isinstance(entry.attack, GatewayAttack)
    assert entry.attack.run(stack) is False


def test_the_corpus_is_whole() -> None:
    assert len(ENTRIES) >= 80
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert len(CONTROLS) == 3
    for entry in ENTRIES + CONTROLS:
        assert re.fullmatch(r"[A-Z].{20,200}\.", entry.sentence), entry
