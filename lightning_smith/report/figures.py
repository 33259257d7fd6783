"""Figures of the report as SVG: the data funnel, the training reward, the evaluation.

The same data give the same bytes: ids inside the SVG come from a fixed salt and no date is written. Letters
are drawn as outlines, so a figure looks the same wherever it is opened. Colours are those of Okabe and Ito
(colour-blind safe); series differ in marker or line as well.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, write_atomic
from lightning_smith.funnel.ledger import FilterTotal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#5F6368"

STYLE: Any = {
    "svg.hashsalt": "lightning-smith",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E3E5E8",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "lines.linewidth": 1.8,
}


_PANELS_PER_LINE = 3
_LEGEND_LINES = 3
"""More series than this get a legend of two columns."""


def read_rewards(path: Path | str) -> list[tuple[int, float]]:
    """(step, mean reward) of a training run's manifest; steps without a valid rollout are left out."""
    found = [(row.get("step"), row.get("reward")) for row in read_json(path)["metrics"]["steps"]]
    return [(int(step), float(reward)) for step, reward in found if step is not None and reward is not None]


def trailing_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean over the last `window` values up to each one; fewer at the start."""
    means = []
    for index in range(len(values)):
        recent = values[max(0, index + 1 - window) : index + 1]
        means.append(sum(recent) / len(recent))
    return means


def smoothing_window(steps: int) -> int:
    """Steps of the running mean: a tenth of the run, at least three."""
    return max(3, round(steps / 10))


def draw_funnel(steps: Sequence[FilterTotal]) -> str:
    """Return the funnel as SVG text: a bar a filter, its length the tasks that are left."""
    with _style():
        figure, (axes,) = _new_figure(7.6, 1.1 + 0.52 * len(steps))
        _fill_funnel(axes, steps)
        return _svg(figure)


def _fill_funnel(axes: Axes, steps: Sequence[FilterTotal]) -> None:
    positions = list(range(len(steps)))
    before = [step.kept + step.dropped for step in steps]
    kept = axes.barh(positions, [step.kept for step in steps], color=COLOURS[0], height=0.62, zorder=2)
    dropped = axes.barh(positions, before, color="#D9DCE0", height=0.62, zorder=1)
    for position, step, total in zip(positions, steps, before, strict=True):
        text = f"{step.kept:,} (\u2212{step.dropped:,})" if step.dropped else f"{step.kept:,}"
        axes.annotate(text, (total, position), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(positions, [step.filter.replace("_", " ") for step in steps])
    axes.invert_yaxis()
    axes.set_xlim(0, max(before) * 1.32)
    axes.set_xlabel("tasks")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(_few_integers())
    axes.legend(
        [kept, dropped],
        ["kept", "dropped by this filter"],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=2,
        borderaxespad=0.3,
        fontsize=10,
    )


def draw_rewards(runs: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Training reward by step as SVG text, a panel a recipe: each step's mean as points, a running mean as
    line."""
    runs = {name: rows for name, rows in runs.items() if rows}
    if not runs:
        raise UserError("no training run has a step with a reward yet: train first")
    with _style():
        columns = min(len(runs), _PANELS_PER_LINE)
        lines = -(-len(runs) // columns)
        figure, panels = _new_figure(max(4.6, 4.2 * columns), 3.5 * lines, columns, lines)
        for index, (axes, name) in enumerate(zip(panels, sorted(runs), strict=False)):
            _fill_rewards(axes, name, runs[name], index)
        for axes in panels[::columns]:
            axes.set_ylabel("mean reward of the step's rollouts")
        for axes in panels[len(runs) :]:
            axes.remove()
        return _svg(figure)


def _fill_rewards(axes: Axes, name: str, rows: Sequence[tuple[int, float]], index: int) -> None:
    steps, rewards = [step for step, _ in rows], [reward for _, reward in rows]
    window = smoothing_window(len(rows))
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    axes.plot(
        steps, rewards, marker, color=colour, alpha=0.45, markersize=4.5, markeredgewidth=0, label="step"
    )
    axes.plot(steps, trailing_mean(rewards, window), color=colour, label=f"mean of {window} steps")
    axes.set_title(name)
    axes.set_xlabel("optimizer step")
    axes.set_ylim(0, 1)
    axes.xaxis.set_major_locator(_few_integers())
    axes.legend(loc="best", fontsize=10)


def read_results(path: Path | str) -> list[dict[str, str]]:
    """Return rows of the results table's CSV. Raise UserError if it is absent or holds no measured row."""
    if not Path(path).exists():
        raise UserError(f"{path} does not exist: make the results table first")
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if not any(row.get("origin") == "measured" for row in rows):
        raise UserError(f"{path} has no measured row: evaluate a checkpoint first")
    return rows


def draw_evaluation(rows: Sequence[Mapping[str, str]]) -> str:
    """Resolved rate by step as SVG text: measured rows with 95 % intervals; published ones in a panel of
    their own."""
    measured = [row for row in rows if row["origin"] == "measured"]
    published = [row for row in rows if row["origin"] == "published"]
    with _style():
        most = max(len({row["recipe"] for row in measured}), len({row["model"] for row in published}))
        legend_lines = -(-most // 2) if most > _LEGEND_LINES else most
        height = 3.6 + 0.24 * legend_lines
        figure, panels = _new_figure(8.8 if published else 5.0, height, 2 if published else 1)
        panels[0].set_title("Measured here" + ("\n" if published else ""))
        panels[0].set_ylabel("resolved, % (bars: 95 % intervals)")
        _fill_series(panels[0], measured, key="recipe", filled=True)
        if published:
            panels[1].set_title("Published on SWE-bench Verified,\nnot measured here", color=GREY)
            panels[1].set_facecolor("#F4F5F6")
            _fill_series(panels[1], published, key="model", filled=False)
        panels[0].set_ylim(bottom=0)
        return _svg(figure)


def _fill_series(axes: Axes, rows: Sequence[Mapping[str, str]], *, key: str, filled: bool) -> None:
    # Ordered by recipe, so that a kind of policy has one colour in both panels.
    names = list(dict.fromkeys(row[key] for row in sorted(rows, key=lambda row: row["recipe"])))
    width = max(int(row["step"]) for row in rows) or 1
    for index, name in enumerate(names):
        series = sorted((row for row in rows if row[key] == name), key=lambda row: int(row["step"]))
        # A small shift keeps the intervals of two series at one step apart.
        shift = (index - (len(names) - 1) / 2) * min(0.02, 0.06 / len(names)) * width
        steps = [int(row["step"]) + shift for row in series]
        rates = [100 * float(row["rate"]) for row in series]
        errors = [[_reach(row, side) for row in series] for side in ("rate_low", "rate_high")]
        colour = COLOURS[index % len(COLOURS)]
        axes.errorbar(
            steps,
            rates,
            yerr=errors,
            color=colour,
            ecolor=colour,
            elinewidth=1.3,
            capsize=3.5,
            linestyle="-" if filled else (0, (4, 2)),
            marker=MARKERS[index % len(MARKERS)],
            markersize=6.5,
            markerfacecolor=colour if filled else "white",
            markeredgecolor=colour,
            label=name if all(row["rate_low"] for row in series) else f"{name} (rates only)",
        )
    axes.set_xlabel("optimizer step")
    axes.set_xticks(sorted({int(row["step"]) for row in rows}))
    # Below the panel: inside it there is no place that no interval reaches.
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
        ncols=2 if len(names) > _LEGEND_LINES else 1,
        fontsize=10,
    )


def _reach(row: Mapping[str, str], side: str) -> float:
    """Length of one arm of the interval in points; 0 where no interval is known."""
    return 100 * abs(float(row[side]) - float(row["rate"])) if row[side] else 0.0


def _few_integers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=6, integer=True)


def _style() -> Any:
    """Return the report's look, for the block in which a figure is drawn and saved."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE)


def _new_figure(width: float, height: float, panels: int = 1, lines: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of `panels` side by side in each of `lines`, line by line, with one y axis.

    No window system and no global state is involved.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(lines, panels, sharey=True, squeeze=False).flat)


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib ends many lines in blanks; without them the committed figures pass every white-space check.
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


def write_figures(
    folder: Path | str,
    *,
    funnel: Sequence[FilterTotal] | None = None,
    rewards: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    results: Sequence[Mapping[str, str]] | None = None,
) -> list[Path]:
    """Draw what there are data for into `folder`; returns the files."""
    drawn = {
        "funnel.svg": draw_funnel(funnel) if funnel else None,
        "reward.svg": draw_rewards(rewards) if rewards else None,
        "evaluation.svg": draw_evaluation(results) if results else None,
    }
    written = []
    for name, svg in drawn.items():
        if svg is not None:
            path = Path(folder) / name
            write_atomic(path, svg)
            written.append(path)
    return written
