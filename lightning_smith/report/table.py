"""The results table: measured rows with intervals and paired comparisons, published rows apart from them.

Every sentence is made from the numbers, and none says more than its interval does.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from lightning_smith.core.markdown import table
from lightning_smith.evaluation.counts import Category, count_outcomes, suspicious
from lightning_smith.evaluation.paired import Interval
from lightning_smith.report.published import PublishedRow
from lightning_smith.report.results import Row, shared_settings

GAP_NAMES = {"max": "largest", "mean": "mean", "k3": "k3 estimate of the KL divergence"}
"""Figures of the log-probability gap between rollout engine and trainer: `gap_<key>` in a manifest's
metrics, and `gap_<key>_replay` with the recorded experts replayed."""


SIGNIFICANCE = 0.05
"""Where an exact p agrees with a 95 % interval that excludes 0."""


def claim(row: Row, comparisons: int) -> str:
    """Return what a comparison shows, in one sentence that claims nothing beyond its intervals and its exact test.

    `comparisons` is how many Holm's correction is over. The interval over instances is a normal approximation: with
    few discordant pairs it can exclude 0 where the exact test does not reject, and the sentence then says so.
    """
    assert row.comparison is not None
    result, item = row.comparison, row.checkpoint
    inside = "excludes 0" if result.normal.excludes_zero else "includes 0"
    if result.normal.excludes_zero != (result.p_value < SIGNIFICANCE):
        inside += ", but the exact test does not agree, so nothing is claimed"
    corrected = ""
    if comparisons > 1:
        corrected = (
            f", {p_text(row.p_holm)} after Holm's correction for the {comparisons} comparisons of this table"
        )
    clustered = ""
    if result.clustered:
        reach = "excludes 0" if result.clustered.excludes_zero else "includes 0"
        clustered = f"; with {result.clusters} repositories as the units {span(result.clustered)}, {reach}"
    return (
        f"{item.recipe} step {item.step} against step 0: {points(result.difference)} points on "
        f"{result.pairs} paired instances; the 95 % interval, {span(result.normal)}, {inside} "
        f"({result.test} test: p {p_text(result.p_value)}{corrected}; "
        f"{result.gained} instances better, {result.lost} worse){clustered}."
    )


def p_text(p: float | None) -> str:
    """Return a p-value to two significant digits."""
    if p is None:
        return ""
    return "< 0.0001" if p < 0.0001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def percent(rate: float) -> str:
    """Return a rate: `47.8 %`."""
    return f"{100 * rate:.1f} %"


def points(difference: float) -> str:
    """Return a difference of rates in percentage points, with its sign: `+4.2`."""
    text = f"{100 * difference:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def span(interval: Interval) -> str:
    """Return an interval of a difference: `+1.6 to +6.8`."""
    return f"{points(interval.low)} to {points(interval.high)}"


def rate_span(interval: Interval) -> str:
    """Return an interval of a rate: `43.5 to 52.2`."""
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f}"


def render_markdown(
    rows: Sequence[Row],
    *,
    title: str,
    published: Sequence[PublishedRow] = (),
    controls: Mapping[str, Any] | None = None,
    manifests: Mapping[tuple[str, int], Mapping[str, Any]] | None = None,
) -> str:
    """Return the whole main.md. `controls` is the summary of the gold and empty control, `manifests` are by recipe
    and step."""
    parts = [f"# {title}", ""]
    for policy in dict.fromkeys(row.checkpoint.policy for row in rows):
        parts += _measured([row for row in rows if row.checkpoint.policy == policy], policy)
    if controls:
        parts += _controls(controls)
    if gaps := _gap_lines(manifests or {}):
        parts += gaps
    if published:
        parts += _published(published, {row.checkpoint.evaluation.summary["dataset"] for row in rows})
    return "\n".join(parts).rstrip() + "\n"


def _measured(rows: Sequence[Row], policy: str) -> list[str]:
    lines = [f"## Measured: policy {policy}", "", _settings_line(rows), ""]
    head = ("recipe", "step", "trained examples", "resolved", "rate (95 % interval)")
    head += ("suspicious",) if (scanned := any(map(_scanned, rows))) else ()
    head += ("difference to step 0, points (95 % paired interval)", "the same by repository", "p", "p, Holm")
    right = (1, 2, 3, 5, 8, 9) if scanned else (1, 2, 3, 7, 8)
    lines += _table(head, [_measured_cells(row, scanned) for row in rows], right=right)
    compared = [row for row in rows if row.comparison]
    lines += [f"- {claim(row, len(compared))}" for row in compared]
    lines += ["", _scope(compared), ""] if compared else []
    lines += [
        "What became of the rollouts: categories of the official report, then how the rollouts ended.",
        "",
    ]
    lines += [*_count_table(rows), _cross_check(rows), ""]
    return [*lines, *_suspicious(rows)] if scanned else lines


def _scope(compared: Sequence[Row]) -> str:
    """Return what intervals and tests are about, and what they are not."""
    found = compared[0].comparison
    assert found is not None
    text = (
        "The paired interval and the test take instances as independent: they are about this set of instances, and "
        "about one training run a recipe. A rollout has the same seed at every checkpoint, by instance and sample."
    )
    if found.clusters > 1:
        text += (
            f" Instances of one repository resemble each other, so the column by repository takes the "
            f"{found.clusters} repositories as the units (jackknife over them, t with {found.clusters - 1} degrees of "
            "freedom): only where that interval excludes 0 is a difference to be expected of other repositories."
        )
    return text


def _cross_check(rows: Sequence[Row]) -> str:
    """Return how often the grader of training, asked about the same patches, says something else than swebench."""
    asked = [
        (row.checkpoint, verdict)
        for row in rows
        for verdict in row.checkpoint.evaluation.verdicts
        if verdict.ours is not None
    ]
    disputed = [
        f"{item.recipe} step {item.step}: {verdict.instance_id} sample {verdict.sample} "
        f"({verdict.category}, ours {verdict.ours})"
        for item, verdict in asked
        if verdict.disputed
    ]
    tested = sum(verdict.tested for _, verdict in asked)
    listed = f": {'; '.join(disputed)}" if disputed else ""
    return (
        f"The grader of training tested {tested} of the resolved patches again and read swebench's logs of "
        f"{len(asked) - tested} patches; it disagrees with swebench on {len(disputed)}{listed}."
    )


def _scanned(row: Row) -> bool:
    """Return whether the patches of a checkpoint were scanned; gradings before there was a scan do not say."""
    return row.checkpoint.evaluation.summary.get("suspicious") is not None


def _suspicious(rows: Sequence[Row]) -> list[str]:
    """Return every patch in which the scan found something, with what it found."""
    lines = [
        f"- {row.checkpoint.recipe} step {row.checkpoint.step}: {verdict.instance_id} sample {verdict.sample} "
        f"({verdict.category}): {'; '.join(map(_quoted, verdict.hits))}"
        for row in rows
        for verdict in suspicious(row.checkpoint.evaluation.verdicts)
    ]
    text = (
        "Suspicious are patches that add what forging test results takes and the gold patch does without "
        "(docs/attacks.md); resolved ones count as resolved"
    )
    return [f"{text}:", "", *lines, ""] if lines else [f"{text}. There are none.", ""]


def _quoted(hit: str) -> str:
    """Return a hit as it stands in text, whatever the file's name holds."""
    return f"`{' '.join(hit.replace('`', chr(39)).split())}`"


def _settings_line(rows: Sequence[Row]) -> str:
    evaluations = [row.checkpoint.evaluation for row in rows]
    settings = shared_settings(evaluations)
    versions = ", ".join(
        f"{key.removeprefix('version of ')} {value}"
        for key, value in settings.items()
        if key.startswith("version of ")
    )
    machines = dict.fromkeys(evaluation.summary["rollouts"]["machine"] for evaluation in evaluations)
    agent = (
        f"{settings['max_turns']} turns, context {settings['context']:,} tokens, "
        f"{settings['max_tokens']:,} tokens an answer, temperature {settings['temperature']:g}"
    )
    return (
        f"Settings: {settings['instances']} instances of {settings['dataset']} "
        f"(sha256 {settings['dataset_sha256'][:12]}), {_plural(settings['samples'], 'sample')} an instance, "
        f"seed {settings['seed']}; {agent}; tests judged by {settings['harness']}, run in "
        f"{settings['executor']} for at most {settings['harness_timeout_s']:g} s; {versions}; "
        f"machine: {' and '.join(machines)}."
    )


def _measured_cells(row: Row, scanned: bool) -> tuple[str, ...]:
    item, result = row.checkpoint, row.comparison
    found = suspicious(item.evaluation.verdicts)
    resolved = sum(verdict.resolved for verdict in found)
    hacks = f"{len(found)} ({resolved} resolved)" if found else "0"
    return (
        item.recipe,
        str(item.step),
        f"{item.trained_examples:,}",
        f"{row.resolved}/{row.total}",
        f"{percent(row.rate)} ({rate_span(row.interval)})",
        *((hacks if _scanned(row) else "",) if scanned else ()),
        f"{points(result.difference)} ({span(result.normal)})" if result else "",
        span(result.clustered) if result and result.clustered else "",
        p_text(result.p_value) if result else "",
        p_text(row.p_holm),
    )


def _count_table(rows: Sequence[Row]) -> list[str]:
    outcomes = {id(row): count_outcomes(row.checkpoint.evaluation.verdicts) for row in rows}
    shown = [
        name for name in next(iter(outcomes.values())) if any(counts[name] for counts in outcomes.values())
    ]
    categories = [category.value for category in Category]
    # Both lists may name `missing`; the column of categories says it.
    shown = [name for name in shown if name != Category.MISSING.value]
    cells = []
    for row in rows:
        counts = row.checkpoint.evaluation.summary["counts"]
        cells.append(
            (
                row.checkpoint.recipe,
                str(row.checkpoint.step),
                *(str(counts[name]) for name in categories),
                *(str(outcomes[id(row)][name]) for name in shown),
            )
        )
    head = ("recipe", "step", *categories, *(name.replace("_", " ") for name in shown))
    return _table(head, cells, right=range(1, len(head)))


def _controls(controls: Mapping[str, Any]) -> list[str]:
    """Return what the same grading says of the gold patches, and of no patch at all; exceptions are named."""
    sentences = {
        "gold": "{} of {} gold patches resolve",
        "empty": "{} of {} instances resolve without a patch",
    }
    lines = ["## Control of the grading", ""]
    for kind, control in controls.items():
        text = sentences[kind].format(control["resolved"], control["instances"])
        failed = f"; against expectation: {', '.join(control['failed'])}" if control["failed"] else ""
        lines.append(f"- {text}{failed}.")
    return [*lines, ""]


def _gap_lines(manifests: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    """Return the gap between rollout engine and trainer with and without replayed experts, where training measured
    both."""
    cells = []
    for (recipe, step), manifest in sorted(manifests.items()):
        steps = (manifest.get("metrics") or {}).get("steps") or []
        measured = [row for row in steps if row.get("gap_max_replay") is not None]
        for key, label in GAP_NAMES.items() if measured else ():
            anew, replayed = (_over_steps(measured, f"gap_{key}{suffix}") for suffix in ("", "_replay"))
            cells.append((recipe, str(step), label, f"{anew:.2g}", f"{replayed:.2g}"))
    if not cells:
        return []
    head = (
        "recipe",
        "step",
        "gap of token log-probabilities",
        "experts chosen anew",
        "experts replayed (R3)",
    )
    lines = ["## Router replay: rollout engine against trainer", ""]
    lines += ["The same tokens under the same weights, over all updates up to the checkpoint.", ""]
    return [*lines, *_table(head, cells, right=(1, 3, 4))]


def _over_steps(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the largest gap of all steps, or the mean over their tokens."""
    if key.startswith("gap_max"):
        return max(row[key] for row in rows)
    tokens = sum(row["trained_tokens"] for row in rows)
    return sum(row[key] * row["trained_tokens"] for row in rows) / tokens


def _published(published: Sequence[PublishedRow], datasets: Iterable[str]) -> list[str]:
    lines = ["## Published scores on SWE-bench Verified, not measured here", ""]
    if not any("verified" in dataset.lower() for dataset in datasets):
        lines += [
            "Other models on other instances than those measured above: not to be compared with them.",
            "",
        ]
    cells = []
    for row in published:
        interval = f" ({rate_span(row.interval)})" if row.interval else ""
        cells.append(
            (
                row.model,
                str(row.step),
                "" if row.trained_examples is None else f"{row.trained_examples:,}",
                "" if row.resolved is None else f"{row.resolved}/{row.total}",
                f"{row.rate_percent:.1f} %{interval}",
                row.source,
            )
        )
    head = ("model", "step", "trained examples", "resolved", "rate (95 % interval, computed here)", "source")
    lines += _table(head, cells, right=(1, 2, 3))
    for source, caveat, model in dict.fromkeys((row.source, row.caveat, row.model) for row in published):
        steps = ", ".join(str(row.step) for row in published if (row.source, row.caveat) == (source, caveat))
        lines.append(f"- {model}, step {steps}: {caveat}.")
    return [*lines, ""]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int]) -> list[str]:
    return [*table(head, rows, right=right), ""]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


CSV_COLUMNS = (
    *(
        "origin",
        "model",
        "recipe",
        "step",
        "trained_examples",
        "resolved",
        "total",
        "rate",
        "rate_low",
        "rate_high",
    ),
    *("pairs", "gained", "lost", "difference", "difference_low", "difference_high", "bootstrap_low"),
    *(
        "bootstrap_high",
        "repositories",
        "repository_low",
        "repository_high",
        "test",
        "p",
        "p_holm",
        "excludes_zero",
        *(f"n_{category}" for category in Category),
        "suspicious",
    ),
    *("harness", "dataset_sha256", "source"),
)


def render_csv(rows: Sequence[Row], published: Sequence[PublishedRow] = ()) -> str:
    """Measured and published rows as CSV, told apart by the column `origin`; rates and differences are
    fractions."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(_measured_record(row))
    for other in published:
        writer.writerow(_published_record(other))
    return stream.getvalue()


def _measured_record(row: Row) -> dict[str, Any]:
    item, result, summary = row.checkpoint, row.comparison, row.checkpoint.evaluation.summary
    record = {
        "origin": "measured",
        "model": item.policy,
        "recipe": item.recipe,
        "step": item.step,
        "trained_examples": item.trained_examples,
        "resolved": row.resolved,
        "total": row.total,
        "rate": _exact(Fraction(row.resolved, row.total)),
        "rate_low": _exact(row.interval.low),
        "rate_high": _exact(row.interval.high),
        **{f"n_{name}": count for name, count in summary["counts"].items()},
        **({"suspicious": summary["suspicious"]} if _scanned(row) else {}),
        "harness": summary["harness"],
        "dataset_sha256": summary["dataset_sha256"],
    }
    if result is None:
        return record
    return record | {
        "pairs": result.pairs,
        "gained": result.gained,
        "lost": result.lost,
        "difference": _exact(result.difference),
        "difference_low": _exact(result.normal.low),
        "difference_high": _exact(result.normal.high),
        **_ends("bootstrap", result.bootstrap),
        **({"repositories": result.clusters} if result.clustered else {}),
        **_ends("repository", result.clustered),
        "test": result.test,
        "p": f"{result.p_value:.3g}",
        "p_holm": f"{row.p_holm:.3g}",
        "excludes_zero": str(result.normal.excludes_zero).lower(),
    }


def _published_record(row: PublishedRow) -> dict[str, Any]:
    interval = row.interval
    optional = {
        "trained_examples": row.trained_examples,
        "resolved": row.resolved,
        "total": row.total,
        "rate_low": _exact(interval.low) if interval else None,
        "rate_high": _exact(interval.high) if interval else None,
    }
    return {
        "origin": "published",
        "model": row.model,
        "recipe": row.kind,
        "step": row.step,
        "rate": _exact(row.rate_percent / 100),
        "source": row.source,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _ends(name: str, interval: Interval | None) -> dict[str, str]:
    if interval is None:
        return {}
    return {f"{name}_low": _exact(interval.low), f"{name}_high": _exact(interval.high)}


def _exact(value: float | Fraction) -> str:
    """Return a fraction with six digits after the point, so that the file's bytes do not depend on rounding
    noise."""
    return f"{float(value):.6f}"
