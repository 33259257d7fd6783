"""From the official summary to verdicts: what the machine did wrong is never held against the policy."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_smith.contracts.outcome import Outcome, RolloutRecord
from lightning_smith.core.errors import UserError
from lightning_smith.evaluation.counts import Category, count_categories
from lightning_smith.evaluation.harness import NOT_RUN, PATCH_FAILED, TIMED_OUT, Answer, Graded, make_verdicts

KEYS = ("resolved_ids", "unresolved_ids", "empty_patch_ids", "error_ids", "incomplete_ids")


def summary(**ids: list[str]) -> dict[str, Any]:
    listed = {key: ids.get(key, []) for key in KEYS}
    return {**listed, "total_instances": sum(map(len, listed.values()))}


def record(instance_id: str, outcome: Outcome | None) -> RolloutRecord:
    return RolloutRecord(
        instance_id=instance_id,
        sample=0,
        outcome=outcome,
        reward=None,
        resolved=None,
        turns=1,
        prompt_tokens=1,
        completion_tokens=1,
        wall_s=1.0,
        model="m",
        model_revision="r",
        image_digest="",
        seed=1,
    )


def test_every_category_gets_its_outcome():
    report = summary(
        resolved_ids=["gold"],
        unresolved_ids=["wrong", "forged"],
        empty_patch_ids=["unchanged", "limit"],
        error_ids=["corrupt", "slow", "broken", "lost"],
        incomplete_ids=["infra", "never"],
    )
    done = {"resolved": True}
    graded = {
        "gold": Graded(done, None, Answer(Outcome.SOLVED, tested=True)),
        "wrong": Graded({"resolved": False}, None, Answer(Outcome.UNSOLVED, tested=True)),
        "forged": Graded({"resolved": False}, None, Answer(Outcome.TAMPERED, tested=True)),
        "corrupt": Graded(None, PATCH_FAILED, Answer(Outcome.UNSOLVED, tested=True)),
        "slow": Graded(None, TIMED_OUT, Answer(Outcome.UNSOLVED, tested=True)),
        "broken": Graded(None, f"{NOT_RUN}: no memory", None, valid=False),
    }
    records = {
        "limit": record("limit", Outcome.AGENT_LIMIT),
        "unchanged": record("unchanged", None),
        "infra": record("infra", Outcome.INFRA),
    }
    verdicts = {row.instance_id: row for row in make_verdicts(report, graded, records, 0)}
    assert {key: row.outcome for key, row in verdicts.items()} == {
        "gold": Outcome.SOLVED,
        "wrong": Outcome.UNSOLVED,
        "forged": Outcome.TAMPERED,
        "unchanged": Outcome.UNSOLVED,
        "limit": Outcome.AGENT_LIMIT,
        "corrupt": Outcome.UNSOLVED,
        "slow": Outcome.UNSOLVED,
        "broken": Outcome.GRADER_ERROR,
        "lost": Outcome.GRADER_ERROR,
        "infra": Outcome.INFRA,
        "never": None,
    }
    assert sorted(key for key, row in verdicts.items() if not row.graded) == [
        "broken",
        "infra",
        "lost",
        "never",
    ]
    assert verdicts["broken"].reason == "the tests could not be run: no memory"
    assert verdicts["broken"].category is Category.ERROR
    assert not any(row.disputed for row in verdicts.values())
    counts = count_categories(list(verdicts.values()), instances=11, samples=1)
    assert counts == {"resolved": 1, "unresolved": 2, "empty": 2, "error": 4, "missing": 2}


def test_disagreement_of_the_two_graders_shows():
    report = summary(resolved_ids=["a"], unresolved_ids=["b"])
    graded = {
        "a": Graded({"resolved": True}, None, Answer(Outcome.TAMPERED, tested=True)),
        "b": Graded({"resolved": False}, None, Answer(Outcome.SOLVED, tested=True)),
    }
    verdicts = make_verdicts(report, graded, {}, 0)
    assert [row.disputed for row in verdicts] == [True, True]
    assert [row.resolved for row in verdicts] == [True, False]


def test_an_instance_in_two_categories_is_refused():
    with pytest.raises(UserError, match="counts a as resolved and as error"):
        make_verdicts(summary(resolved_ids=["a"], error_ids=["a"]), {}, {}, 0)


def test_an_instance_in_no_category_is_refused():
    report = summary(resolved_ids=["a"]) | {"total_instances": 2}
    with pytest.raises(UserError, match="puts 1 of 2 instances into a category"):
        make_verdicts(report, {}, {}, 0)
