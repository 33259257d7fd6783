"""What all tests share: environments with the real parts, created once, on demand, and their spread over processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lightning_smith.workflow.environments import create, interpreter

# The tests start Python many hundred times: without byte code each start would compile anew what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start and then interrupt.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

ENVIRONMENTS = Path(__file__).parents[1] / "envs"

MAX_WORKERS = 4
"""Each may have a policy's server and its training beside it, in up to 2 GB."""

LABELLED = (
    "e2e/test_miniature_docker.py",
    "e2e/test_prepare_images.py",
    "e2e/test_certify_images.py",
    "e2e/test_images_workflow.py",
    "e2e/test_import_images.py",
    "e2e/test_prune_images.py",
    "e2e/test_layered_pods.py",
    "e2e/test_insecure_registries.py",
)
"""Files that remove every image with the agent layer from the daemon: one process runs them."""

LONGEST = ("attacks/", *LABELLED, "e2e/test_workflow.py", "e2e/", "workflow/")
"""Begun in this order, so that no process is left with a long file at the end."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Create what a fresh clone lacks: packages of the sandboxes, the policy server, the graders and the generator."""
    for name in ("testbed", "mini", "eval", "smith"):
        if not interpreter(ENVIRONMENTS / name).exists():
            create(ENVIRONMENTS / name)


def _place(file: str) -> int:
    """When the tests of a file, named from the root of the repository, are begun."""
    file = file.removeprefix("tests/")
    return next((i for i, start in enumerate(LONGEST) if file.startswith(start)), len(LONGEST))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first; the order inside a file stays."""
    items.sort(key=lambda item: _place(item.nodeid.partition("::")[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than cores, since many tests wait; none beside this one where files or tests are named."""
    named = all(Path(argument.partition("::")[0]).suffix == ".py" for argument in config.args)
    return 0 if named else min((os.cpu_count() or 1) + 1, MAX_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file in one process, and the files of `LABELLED` in one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "labelled" if file.removeprefix("tests/") in LABELLED else file

    return Files(config, log)
