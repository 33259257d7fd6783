"""The categories of an evaluation sum to what was planned, and absent is not unresolved."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from lightning_smith.contracts.outcome import Outcome
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json
from lightning_smith.evaluation.counts import (
    Category,
    Verdict,
    count_categories,
    count_outcomes,
    graded_means,
    instance_means,
    read_evaluation,
    read_verdicts,
    suspicious,
    write_verdicts,
)


def verdict(instance_id: str, category: str, outcome: str | None, sample: int = 0, **more) -> Verdict:
    return Verdict(
        instance_id,
        sample,
        category == "resolved",
        Category(category),
        Outcome(outcome) if outcome else None,
        **more,
    )


FIVE = [
    verdict("gold", "resolved", "solved"),
    verdict("wrong", "unresolved", "unsolved"),
    verdict("silent", "empty", "agent_limit"),
    verdict("slow", "error", "grader_error", reason="the sandbox did not answer"),
    verdict("lost", "missing", "infra"),
]


def test_every_category_is_counted():
    assert count_categories(FIVE, instances=5, samples=1) == {
        "resolved": 1,
        "unresolved": 1,
        "empty": 1,
        "error": 1,
        "missing": 1,
    }


@pytest.mark.parametrize(("instances", "samples"), [(6, 1), (4, 1), (5, 2)])
def test_a_wrong_sum_names_both_numbers(instances: int, samples: int):
    with pytest.raises(UserError, match=rf"sum to 5 .* are {instances * samples} rollouts"):
        count_categories(FIVE, instances=instances, samples=samples)


def test_a_failed_service_is_not_unresolved():
    """Instances without a verdict stay out of the pairs but in the official denominator."""
    assert [row.instance_id for row in FIVE if not row.graded] == ["slow", "lost"]
    assert graded_means(FIVE) == {"gold": Fraction(1), "wrong": Fraction(0), "silent": Fraction(0)}
    assert instance_means(FIVE, 1) == {
        "gold": Fraction(1),
        "wrong": Fraction(0),
        "silent": Fraction(0),
        "slow": Fraction(0),
        "lost": Fraction(0),
    }


def test_errors_that_the_patch_caused_are_verdicts():
    assert verdict("a", "error", "unsolved", reason="the patch does not apply").graded


def test_several_samples():
    rows = [verdict("a", "resolved", "solved", 0), verdict("a", "missing", "infra", 1)]
    assert graded_means(rows) == {"a": Fraction(1)}
    assert instance_means(rows, 2) == {"a": Fraction(1, 2)}


def test_outcomes_sum_too():
    counts = count_outcomes([*FIVE, verdict("never", "missing", None)])
    assert counts["solved"] == counts["infra"] == counts["missing"] == 1
    assert sum(counts.values()) == 6


def test_suspicious_are_those_with_hits():
    found = verdict("a", "unresolved", "unsolved", hits=("m.py:1 import gc",))
    assert suspicious([*FIVE, found]) == [found]


def test_resolved_belongs_to_one_category():
    with pytest.raises(ValueError, match="resolved is True"):
        Verdict("a", 0, True, Category.UNRESOLVED, Outcome.SOLVED)


def test_files(tmp_path: Path):
    path = tmp_path / "verdicts.jsonl"
    rows = [*FIVE[1:], verdict("gold", "resolved", "solved", hits=("m.py:1 import gc", "m.py:2 import os"))]
    write_verdicts(path, reversed(rows))
    assert read_verdicts(path) == sorted(rows, key=lambda row: row.instance_id)
    write_verdicts(path, [*FIVE, FIVE[0]])
    with pytest.raises(UserError, match="2 verdicts on gold sample 0"):
        read_verdicts(path)
    path.write_text(
        '{"instance_id": "a", "sample": 0, "resolved": false, "category": "odd", "outcome": null}\n'
    )
    with pytest.raises(UserError, match="verdict of a is malformed"):
        read_verdicts(path)


def test_an_evaluation_that_disagrees_with_itself_is_refused(tmp_path: Path):
    write_verdicts(tmp_path / "verdicts.jsonl", FIVE)
    counts = count_categories(FIVE, instances=5, samples=1)
    summary = {"instances": 5, "samples": 1, "counts": counts, "harness": "h", "dataset_sha256": "d"}
    write_json(tmp_path / "counts.json", summary)
    evaluation = read_evaluation(tmp_path, "dense step 8")
    assert evaluation.run().resolved == graded_means(FIVE)
    write_json(tmp_path / "counts.json", summary | {"suspicious": 0})
    assert read_evaluation(tmp_path, "dense step 8").summary["suspicious"] == 0
    write_json(tmp_path / "counts.json", summary | {"suspicious": 1})
    with pytest.raises(
        UserError, match=r"counts 1 suspicious patches but verdicts\.jsonl beside it 0: grade"
    ):
        read_evaluation(tmp_path, "dense step 8")
    write_json(tmp_path / "counts.json", summary | {"counts": counts | {"resolved": 2}})
    with pytest.raises(UserError, match="grade again"):
        read_evaluation(tmp_path, "dense step 8")
    write_json(tmp_path / "counts.json", {"instances": 5, "samples": 1, "counts": counts})
    with pytest.raises(UserError, match="lacks the key 'harness'"):
        read_evaluation(tmp_path, "dense step 8")
