"""Puts the helpers and the kinds of workspaces of tests/e2e within reach."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from kind_fixtures import daemon, docker_image_name, kind, local_image

__all__ = ["daemon", "docker_image_name", "kind", "local_image"]
