"""First filter: drop rows whose problem statement says nothing."""

from __future__ import annotations

from lightning_smith.core.errors import run_script
from lightning_smith.funnel.filters import statement
from lightning_smith.funnel.filters.run import run_row_filter


def main(argv: list[str] | None = None) -> None:
    run_row_filter(statement, __doc__, argv)


if __name__ == "__main__":
    run_script(main)
