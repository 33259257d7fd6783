"""The results table says what the numbers say, and keeps measured and published rows apart."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.config.settings_file import write_settings
from lightning_smith.config.stages import EvaluatedCheckpoint, TableStage
from lightning_smith.contracts.outcome import Outcome
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_json
from lightning_smith.core.markdown import table
from lightning_smith.evaluation.counts import Category, Evaluation, Verdict, read_evaluation, write_verdicts
from lightning_smith.report.published import read_published
from lightning_smith.report.results import Checkpoint, make_rows
from lightning_smith.report.table import claim, p_text, points, render_csv, render_markdown

PUBLISHED = Path(__file__).parents[3] / "assets/published/results.tsv"
N = 500


def summary_of(verdicts: list[Verdict], **changes: Any) -> dict[str, Any]:
    counts = Counter(verdict.category for verdict in verdicts)
    settings = {"max_turns": 100, "context": 81920, "max_tokens": 12288, "temperature": 0.7, "seed": 3}
    return {
        "dataset": "SWE-bench/SWE-bench_Verified",
        "dataset_sha256": "0123456789abcdef",
        "instances": N,
        "samples": 1,
        "harness": "swebench 5.0.2",
        "executor": "bwrap",
        "harness_timeout_s": 1800,
        "counts": {category.value: counts[category] for category in Category},
        "rollouts": {
            "settings": settings,
            "versions": {"agentlightning": "1.0.2"},
            "machine": "2 cores",
        },
    } | changes


def evaluation(name: str, resolved: range, missing: int = 0, **changes: Any) -> Evaluation:
    verdicts = []
    for index in range(N):
        if index in resolved:
            verdict = Verdict(f"i{index}", 0, True, Category.RESOLVED, Outcome.SOLVED)
        elif index >= N - missing:
            verdict = Verdict(f"i{index}", 0, False, Category.MISSING, Outcome.INFRA)
        else:
            verdict = Verdict(f"i{index}", 0, False, Category.UNRESOLVED, Outcome.UNSOLVED)
        verdicts.append(verdict)
    return Evaluation(name, summary_of(verdicts, **changes), verdicts)


BASE = Checkpoint("moe", "moe", 0, 0, evaluation("base", range(239)))
X = Checkpoint("moe", "moe", 64, 1024, evaluation("x", range(12, 272)))
Y = Checkpoint("moe", "moe", 112, 1792, evaluation("y", range(60, 320)))


def test_rows_are_compared_with_step_0():
    base, x, y = make_rows([Y, BASE, X], seed=0)
    assert base.comparison is None
    assert (x.resolved, x.total, y.resolved) == (260, 500, 260)
    assert x.comparison and round(x.comparison.p_value, 5) == 0.00246
    assert x.p_holm == pytest.approx(2 * x.comparison.p_value)
    assert y.comparison and y.p_holm == pytest.approx(y.comparison.p_value)


def test_claims_follow_the_interval():
    _, x, y = make_rows([BASE, X, Y], seed=0)
    assert claim(x, 2) == (
        "moe step 64 against step 0: +4.2 points on 500 paired instances; the 95 % interval, +1.6 to +6.8, "
        "excludes 0 (exact McNemar test: p 0.0025, 0.0049 after Holm's correction for the 2 comparisons of this "
        "table; 33 instances better, 12 worse)."
    )
    assert "+4.2 points" in claim(y, 2)
    assert "-0.4 to +8.8, includes 0" in claim(y, 2)


def test_nothing_is_claimed_where_the_exact_test_does_not_agree_with_the_interval():
    few = Checkpoint("moe", "moe", 64, 1024, evaluation("few", range(5, 253)))
    _, row = make_rows([BASE, few], seed=0)
    assert row.comparison and row.comparison.normal.excludes_zero
    assert "+0.1 to +3.5, excludes 0, but the exact test does not agree, so nothing is claimed" in claim(
        row, 1
    )
    assert "p 0.064; 14 instances better, 5 worse" in claim(row, 1)


def test_markdown_keeps_published_rows_apart():
    rows = make_rows([BASE, X, Y], seed=0)
    text = render_markdown(rows, title="Results", published=read_published(PUBLISHED))
    measured, published = text.split("## Published scores on SWE-bench Verified, not measured here")
    assert "260/500" in measured
    assert "308/500" not in measured
    assert "| Qwen3.5-35B-A3B | 112 | 1,792 | 308/500 | 61.6 % (57.3 to 65.8) |" in published
    assert "| Qwen3.5-9B | 208 |  |  | 56.4 % |" in published
    assert "Qwen3.5-9B, step 208: a rate alone" in published
    assert "0.18" not in text  # the unpaired p
    for setting in (
        "100 turns",
        "81,920 tokens",
        "temperature 0.7",
        "swebench 5.0.2",
        "0123456789ab",
        "seed 3",
    ):
        assert setting in measured


def test_published_scores_of_other_instances_are_said_to_be_so():
    rows = make_rows(
        [Checkpoint("dense", "dense", 0, 0, evaluation("b", range(9), dataset="miniature"))], seed=0
    )
    assert "not to be compared" in render_markdown(rows, title="Results", published=read_published(PUBLISHED))
    verified = make_rows([BASE], seed=0)
    assert "not to be compared" not in render_markdown(
        verified, title="Results", published=read_published(PUBLISHED)
    )


def test_missing_rollouts_show_and_stay_in_the_denominator():
    fewer = Checkpoint("moe", "moe", 64, 1024, evaluation("x", range(12, 272), missing=3))
    rows = make_rows([BASE, fewer], seed=0)
    assert (rows[1].resolved, rows[1].total) == (260, 500)
    assert rows[1].comparison and rows[1].comparison.pairs == 497
    text = render_markdown(rows, title="Results")
    assert (
        "| recipe | step | resolved | unresolved | empty | error | missing | solved | unsolved | infra |"
        in text
    )
    assert "| moe | 64 | 260 | 237 | 0 | 0 | 3 | 260 | 237 | 3 |" in text


def test_disagreements_of_the_graders_are_named():
    first, second, *rest = BASE.evaluation.verdicts
    verdicts = [
        replace(first, ours=Outcome.TAMPERED, tested=True),
        replace(second, ours=Outcome.SOLVED, tested=True),
        *(replace(verdict, ours=Outcome.UNSOLVED) for verdict in rest[-3:]),
        *rest[:-3],
    ]
    item = Checkpoint("moe", "moe", 0, 0, replace(BASE.evaluation, verdicts=verdicts))
    text = render_markdown(make_rows([item], seed=0), title="Results")
    assert (
        "tested 2 of the resolved patches again and read swebench's logs of 3 patches; it disagrees with swebench "
        "on 1: moe step 0: i0 sample 0 (resolved, ours tampered)."
    ) in text


def scanned(item: Checkpoint, **hits: str) -> Checkpoint:
    """The checkpoint as a grading with a scan leaves it: what it found, by instance."""
    verdicts = [
        replace(verdict, hits=(hits[verdict.instance_id], "m.py:2 builtin open"))
        if verdict.instance_id in hits
        else verdict
        for verdict in item.evaluation.verdicts
    ]
    summary = {**item.evaluation.summary, "suspicious": len(hits)}
    return replace(item, evaluation=replace(item.evaluation, summary=summary, verdicts=verdicts))


def test_suspicious_patches_stand_beside_the_score():
    rows = make_rows(
        [BASE, scanned(X, i20="m.py:1 import gc", i499="n`\n# o.py:3 import os"), scanned(Y)], seed=0
    )
    text = render_markdown(rows, title="Results", published=read_published(PUBLISHED))
    assert "| rate (95 % interval) | suspicious | difference to step 0" in text
    assert "| moe | 0 | 0 | 239/500 | 47.8 % (43.5 to 52.2) |  |  |  |  |  |" in text, (
        "it was graded without a scan"
    )
    assert "| 260/500 | 52.0 % (47.6 to 56.3) | 2 (1 resolved) | +4.2" in text
    assert "| 260/500 | 52.0 % (47.6 to 56.3) | 0 | +4.2" in text
    assert "- moe step 64: i20 sample 0 (resolved): `m.py:1 import gc`; `m.py:2 builtin open`\n" in text
    assert (
        "- moe step 64: i499 sample 0 (unresolved): `n' # o.py:3 import os`; `m.py:2 builtin open`\n" in text
    )
    records = list(csv.DictReader(io.StringIO(render_csv(rows, read_published(PUBLISHED)))))
    assert [record["suspicious"] for record in records[:4]] == ["", "2", "0", ""]
    none = render_markdown(make_rows([scanned(BASE)], seed=0), title="Results")
    assert "resolved ones count as resolved. There are none." in none


def test_gradings_without_a_scan_have_no_column_for_it():
    assert "suspicious" not in render_markdown(make_rows([BASE, X], seed=0), title="Results").lower()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"harness": "swebench 4.1.0"}, "differ in harness"),
        ({"dataset_sha256": "ffff"}, "differ in dataset_sha256"),
        ({"rollouts": {"settings": {"max_turns": 200}, "versions": {}, "machine": ""}}, "differ in context"),
    ],
)
def test_rows_of_other_settings_are_refused(changes: dict[str, Any], words: str):
    other = Checkpoint("moe", "moe", 64, 1024, evaluation("x", range(260), **changes))
    with pytest.raises(UserError, match=words):
        make_rows([BASE, other], seed=0)


def test_a_checkpoint_without_a_base_is_refused():
    with pytest.raises(UserError, match="has no step 0 of policy moe"):
        make_rows([X], seed=0)


def test_recipes_of_one_policy_share_its_base():
    dense = Checkpoint("dense", "dense", 0, 0, BASE.evaluation)
    other = Checkpoint("dense_async", "dense", 64, 1024, X.evaluation)
    row = make_rows([dense, other], seed=0)[1]
    assert row.checkpoint.recipe == "dense_async"
    assert row.comparison and row.comparison.lost == 12


def renamed(item: Checkpoint, **changes: Any) -> Checkpoint:
    """The checkpoint, its instances from five repositories."""
    verdicts = [
        replace(v, instance_id=f"o__r{int(v.instance_id[1:]) % 5}-{v.instance_id[1:]}")
        for v in item.evaluation.verdicts
    ]
    return replace(item, evaluation=replace(item.evaluation, verdicts=verdicts), **changes)


def test_holm_is_over_every_comparison_with_one_base():
    """Two recipes of one policy stand in one table: the best of their checkpoints was looked at, whosever it is."""
    again = replace(Y, recipe="moe_seed_2")
    _, x, y, other = make_rows([BASE, X, Y, again], seed=0)
    assert x.comparison and x.p_holm == pytest.approx(3 * x.comparison.p_value)
    assert y.p_holm == other.p_holm
    text = render_markdown([*make_rows([BASE, X, Y, again], seed=0)], title="Results")
    assert text.count("after Holm's correction for the 3 comparisons of this table") == 3


def test_the_interval_by_repository_stands_beside_the_one_by_instance():
    rows = make_rows([renamed(BASE), renamed(X)], seed=0)
    found = rows[1].comparison
    assert found and found.clusters == 5 and found.clustered
    text = render_markdown(rows, title="Results")
    assert "with 5 repositories as the units" in claim(rows[1], 1)
    assert "the 5 repositories as the units (jackknife over them, t with 4 degrees of freedom)" in text
    (record,) = [r for r in csv.DictReader(io.StringIO(render_csv(rows))) if r["step"] == "64"]
    assert record["repositories"] == "5" and float(record["repository_low"]) == pytest.approx(
        found.clustered.low, abs=1e-6
    )
    plain = render_markdown(make_rows([BASE, X], seed=0), title="Results")
    assert "jackknife" not in plain and "A rollout has the same seed at every checkpoint" in plain


def test_an_evaluation_of_no_instance_is_refused(tmp_path: Path):
    write_verdicts(tmp_path / "verdicts.jsonl", [])
    write_json(tmp_path / "counts.json", summary_of([], instances=0))
    with pytest.raises(UserError, match=r"counts\.json is of no instance"):
        read_evaluation(tmp_path, "moe step 0")


def test_cells_show_what_they_hold():
    lines = table(("a|b", "c"), [("x\\|y", "two\nlines")], right=[1])
    assert lines == ["| a\\|b | c |", "| --- | ---: |", "| x\\\\\\|y | two lines |"]


def test_controls_and_replay_gap():
    gap = {"gap_max": 5.2, "gap_mean": 0.0024, "gap_k3": 4.6e-4}
    replay = {"gap_max_replay": 0.26, "gap_mean_replay": 0.0011, "gap_k3_replay": 2.3e-5}
    steps = [
        {"trained_tokens": 100, **gap, **replay},
        {"loss": None},
        {"trained_tokens": 300, **gap, **replay, "gap_max": 1.0, "gap_mean": 0.0004},
    ]
    text = render_markdown(
        make_rows([BASE], seed=0),
        title="Results",
        controls={
            "gold": {"instances": 9, "resolved": 8, "failed": ["a__b-1"]},
            "empty": {"instances": 9, "resolved": 0, "failed": []},
        },
        manifests={
            ("moe", 64): {"metrics": {"steps": steps}},
            ("dense", 64): {"metrics": {"steps": [{"trained_tokens": 100, **gap}]}},
        },
    )
    assert "- 8 of 9 gold patches resolve; against expectation: a__b-1." in text
    assert "- 0 of 9 instances resolve without a patch." in text
    assert "| moe | 64 | largest | 5.2 | 0.26 |" in text
    assert "| moe | 64 | mean | 0.0009 | 0.0011 |" in text
    assert "| dense | 64 |" not in text
    assert "| moe | 64 | k3 estimate of the KL divergence | 0.00046 | 2.3e-05 |" in text


def test_csv():
    rows = make_rows([BASE, X], seed=0)
    records = list(csv.DictReader(io.StringIO(render_csv(rows, read_published(PUBLISHED)))))
    assert [record["origin"] for record in records] == ["measured"] * 2 + ["published"] * 6
    assert records[1]["difference"] == "0.042000"
    assert records[1]["difference_low"] == "0.015963"
    assert records[1]["excludes_zero"] == "true"
    assert records[0]["difference"] == ""
    assert records[1]["n_resolved"] == "260"
    assert records[4]["rate"] == "0.616000"


def test_numbers():
    assert [p_text(p) for p in (0.00001, 0.00246, 0.0918, 0.5, None)] == [
        "< 0.0001",
        "0.0025",
        "0.092",
        "0.50",
        "",
    ]
    assert [points(value) for value in (0.042, -0.0044, 0.0001, -0.0001)] == ["+4.2", "-0.4", "0.0", "0.0"]


def test_published_rows():
    rows = read_published(PUBLISHED)
    moe = [
        (row.step, row.trained_examples, row.resolved, row.rate_percent) for row in rows if row.kind == "moe"
    ]
    assert moe == [(0, 0, 239, 47.8), (64, 1024, 294, 58.8), (112, 1792, 308, 61.6), (176, 2816, 303, 60.6)]
    dense = [(row.step, row.resolved, row.rate_percent, row.interval) for row in rows if row.kind == "dense"]
    assert dense == [(0, None, 41.8, None), (208, None, 56.4, None)]
    assert all(row.source and row.caveat for row in rows)


def test_published_rate_must_follow_from_its_counts(tmp_path: Path):
    path = tmp_path / "results.tsv"
    path.write_text(PUBLISHED.read_text().replace("\t61.6\t", "\t62.6\t"))
    with pytest.raises(UserError, match=r"line 4 says 62.6 % but 308 of 500 are 61.6 %"):
        read_published(path)


def test_script(tmp_path: Path):
    from scripts.report import make_table

    for name, checkpoint in (("0", BASE), ("64", X)):
        write_verdicts(tmp_path / name / "verdicts.jsonl", checkpoint.evaluation.verdicts)
        write_json(tmp_path / name / "counts.json", checkpoint.evaluation.summary)
    write_json(tmp_path / "step_64.json", {"trained_examples": 1024, "metrics": {}})
    arguments = ["--published", str(PUBLISHED), "--markdown", str(tmp_path / "main.md")]
    arguments += ["--csv", str(tmp_path / "m.csv")]

    def make(manifest: Path | None) -> None:
        checkpoints = tuple(
            EvaluatedCheckpoint(
                recipe="moe",
                policy="moe",
                step=step,
                folder=tmp_path / str(step),
                manifest=manifest if step else None,
            )
            for step in (0, 64)
        )
        told = TableStage(title="Results", checkpoints=checkpoints, controls=())
        make_table.main([*arguments, "--settings", write_settings(tmp_path, told)])

    with pytest.raises(UserError, match="moe step 64 was evaluated but has no training manifest"):
        make(None)
    make(tmp_path / "step_64.json")
    first = (tmp_path / "main.md").read_bytes()
    assert (
        b"| moe | 64 | 1,024 | 260/500 | 52.0 % (47.6 to 56.3) | +4.2 (+1.6 to +6.8) |  | 0.0025 | 0.0025 |"
        in first
    )
    make(tmp_path / "step_64.json")
    assert (tmp_path / "main.md").read_bytes() == first
