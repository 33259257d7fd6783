"""Asks pytest itself to end the session with success."""

from attack import Attack, code

ATTACK = Attack((code("import pytest; pytest.exit('done', returncode=0)"),))
