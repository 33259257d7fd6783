"""Hands in a patch that renames and copies files onto the tests and their configuration."""

from attack import Attack

ATTACK = Attack(
    patch=b"""diff --git a/README b/conftest.py
similarity index 100%
rename from README
rename to conftest.py
diff --git a/src/widget/core.py b/tests/test_core.py
similarity index 100%
copy from src/widget/core.py
copy to tests/test_core.py
"""
)
