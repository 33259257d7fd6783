"""Modules that are started by name are there."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from lightning_smith.core import entry_points

NAMES = [name for name in vars(entry_points) if name.isupper() and name != "IN_IMAGES"]


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_is_started_by_name_can_be_found(name: str) -> None:
    module = getattr(entry_points, name).partition(":")[0]
    assert find_spec(module) is not None
