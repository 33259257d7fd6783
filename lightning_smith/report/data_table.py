"""What the training data are: the funnel's ledger, and what they share with the evaluation set."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_smith.funnel.describe import funnel_table, overlap_table
from lightning_smith.funnel.ledger import FunnelRow, totals


def render_data_table(title: str, funnel: Sequence[FunnelRow], overlap: Sequence[Sequence[str]]) -> str:
    """Return the page tables/data.md. `overlap` as `contamination.read_overlaps` returns it."""
    last = totals(funnel)[-1]
    return "\n".join(
        [
            f"# {title}",
            "",
            f"Of {funnel[0].kept:,} rows {last.kept:,} are candidates.",
            "",
            *funnel_table(funnel),
            "",
            "## Shared with the evaluation set",
            "",
            "Repositories that both the release and the evaluation set are about, before any filter, with the files "
            "that patches of both edit.",
            "",
            *overlap_table(overlap),
            "",
        ]
    )
