"""Places in the checkout that this package is used from."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
TESTBED_PYTHON = REPOSITORY / "envs/testbed/.venv/bin/python"
SMITH_PYTHON = REPOSITORY / "envs/smith/.venv/bin/python"
