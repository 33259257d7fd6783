"""Filter: drop rows whose bug lies in a file that grades them, or whose patch cannot be read."""

from __future__ import annotations

from lightning_smith.errors import run_script
from lightning_smith.tasks.filters import bug_in_tests
from lightning_smith.tasks.filters.run import run_row_filter


def main(argv: list[str] | None = None) -> None:
    run_row_filter(bug_in_tests, __doc__, argv)


if __name__ == "__main__":
    run_script(main)
