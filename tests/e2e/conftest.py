"""Clones of the repository for runs of the real workflow, and the kinds of workspaces."""

from __future__ import annotations

import pytest
from kind_fixtures import daemon, docker_image_name, kind, local_image, pods
from layer_fixtures import built, layer
from tiny_workflow import Workflow, make_workflow

__all__ = ["built", "daemon", "docker_image_name", "kind", "layer", "local_image", "pods"]


@pytest.fixture(scope="session")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The tiny experiment."""
    return make_workflow(tmp_path_factory, "tiny")


@pytest.fixture(scope="session")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The data funnel with every filter on."""
    return make_workflow(tmp_path_factory, "certified")
