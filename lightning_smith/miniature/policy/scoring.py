"""How often a policy writes the exact repair of a task: the edit turn alone, without workspace and tests.

It is the quick judgement of a warm start. The reward of a rollout is decided by tests instead; the two
agree on nearly all rollouts, for a one-line fault has hardly another repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_smith.contracts.outcome import rollout_seed
from lightning_smith.miniature.policy.conversation import (
    Edit,
    EditTask,
    bash_block,
    edit_prompt,
    find_repair,
    repair_command,
)
from lightning_smith.miniature.policy.sampling import Sampler, SamplingRequest
from lightning_smith.miniature.tasks.table import MiniTask, Source
from lightning_smith.repositories.tree_files import TreeFile, read_sdist

MAX_REPLY_TOKENS = 48
BATCH = 128


def edit_tasks(tasks: Iterable[MiniTask], sources: Sequence[Source], sdists: Path) -> dict[str, EditTask]:
    """Instance id -> the task as the policy sees it, its window read from the package's sdist.

    Tasks whose repair is no edit of the policy's language are left out.
    """
    unpacked: dict[str, dict[str, TreeFile]] = {}
    found: dict[str, EditTask] = {}
    for task in tasks:
        repair = find_repair(task.buggy, task.fixed)
        if repair is None:
            continue
        if task.package not in unpacked:
            source = next(s for s in sources if s.package == task.package and s.role != "demo")
            unpacked[task.package] = read_sdist(sdists / source.filename, source.sha256)
        broken = task.break_text(unpacked[task.package][task.path].data.decode("utf-8")).split("\n")
        first, last = task.window
        found[task.instance_id] = EditTask(
            task.kind,
            task.entity,
            task.path,
            first,
            tuple(broken[first - 1 : last]),
            Edit(task.line, *repair),
        )
    return found


def exact_repairs(
    sampler: Sampler, tasks: dict[str, EditTask], samples: int, temperature: float, seed: int
) -> dict[str, int]:
    """Instance id -> how many of `samples` replies to the edit turn are the exact repair."""
    wanted: list[tuple[str, str]] = []
    requests: list[SamplingRequest] = []
    for name, task in tasks.items():
        prompt = sampler.text.encode(edit_prompt(task))
        reply = bash_block(repair_command(task))
        for sample in range(samples):
            wanted.append((name, reply))
            draw = rollout_seed(seed, name, sample, stage="score")
            requests.append(SamplingRequest(prompt, MAX_REPLY_TOKENS, temperature, draw))
    solved = dict.fromkeys(tasks, 0)
    for start in range(0, len(requests), BATCH):
        completions = sampler.sample(requests[start : start + BATCH])
        for (name, reply), completion in zip(wanted[start : start + BATCH], completions, strict=True):
            if completion.finished and sampler.decode(completion.tokens) == reply:
                solved[name] += 1
    return solved
