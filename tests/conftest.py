"""What all tests share: environments with the real parts, created once, on demand, and their spread over processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

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

# A busy machine must not decide whether a property holds.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

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

KINDS_DRAWN = ("attacks/",)
"""Folders whose tests run in one of their kinds of workspaces, drawn by the commit; with --all in each."""

WHOLE_RUNS = "whole_run"
"""Mark of files that run a whole experiment: one in `WHOLE_RUNS_DRAWN` is drawn by the commit; with --all each runs."""
WHOLE_RUNS_DRAWN = 3

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        help="every attack in every kind of workspace, and every whole experiment; else a part, drawn by the commit",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the commit has not drawn; longest first, and the order inside a file stays."""
    if not config.getoption("--all") and not _named(config):
        commit = _commit()
        drawn = _drawn(items, commit)
        config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
        items[:] = [item for item in items if item in drawn]
    items.sort(key=lambda item: _place(item.nodeid.partition("::")[0]))


def _commit() -> str:
    """The commit that is tested; nothing where there is no repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _drawn(items: list[pytest.Item], commit: str) -> set[pytest.Item]:
    """Return the tests that run for a commit: each commit draws anew, so that every test comes round."""
    alike: dict[str, list[pytest.Item]] = {}
    for item in items:
        alike.setdefault(_without_kind(item), []).append(item)
    drawn: set[pytest.Item] = set()
    for name, group in alike.items():
        file = name.partition("::")[0]
        if group[0].get_closest_marker(WHOLE_RUNS) and _lot(commit, file) % WHOLE_RUNS_DRAWN:
            continue
        drawn.add(group[_lot(commit, name) % len(group)])
    return drawn


def _lot(commit: str, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{commit} {name}".encode()).digest()[:8], "big")


def _without_kind(item: pytest.Item) -> str:
    """The id of a test, the same for its kinds of workspaces where one of these is drawn."""
    parameters = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    kind = parameters.get("kind")
    if kind is None or not item.nodeid.removeprefix("tests/").startswith(KINDS_DRAWN):
        return item.nodeid
    return item.nodeid.replace(f"[{kind}", "[*")


def _named(config: pytest.Config) -> bool:
    """Whether files or tests are named, which are run as they are."""
    return any(Path(argument.partition("::")[0]).suffix == ".py" for argument in config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than cores, since many tests wait; none beside this one where files or tests are named."""
    return 0 if _named(config) else min((os.cpu_count() or 1) + 1, MAX_WORKERS)


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
