"""Who says how tasks are tested, chosen by the setting `tests` of a stage."""

from __future__ import annotations

from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.core.paths import SMITH_PYTHON
from lightning_smith.grading.plan import ImageTests, TestPlans
from lightning_smith.grading.smith_client import SmithHarness


def open_plans(tests: str, smith_python: Path = SMITH_PYTHON) -> TestPlans:
    """Return who says how tasks are tested, with arguments as in `StageSettings`. Raise UserError if they cannot be
    asked.
    """
    if tests == "image":
        return ImageTests()
    if tests == "smith":
        return SmithHarness.start(smith_python)
    raise UserError(f"the tests {tests!r} are unknown: it is image or smith")
