"""Filter: drop rows without a FAIL_TO_PASS test."""

from __future__ import annotations

from lightning_smith.core.errors import run_script
from lightning_smith.funnel.filters import fail_to_pass
from lightning_smith.funnel.filters.run import run_row_filter


def main(argv: list[str] | None = None) -> None:
    run_row_filter(fail_to_pass, __doc__, argv)


if __name__ == "__main__":
    run_script(main)
