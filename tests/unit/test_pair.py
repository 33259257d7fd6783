"""Two test runs of a pair: what is ready before what starts, and in which order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lightning_smith.rollout.pair import run_pair


class Trees:
    """Says what is opened, run and closed, in its order; a run is worth its number."""

    def __init__(self, work: Callable[[bool], None] = lambda which: None) -> None:
        self.work = work
        self.events: list[tuple[str, bool]] = []

    @contextmanager
    def __call__(self, which: bool) -> Iterator[Callable[[], int]]:
        self.events.append(("open", which))

        def run() -> int:
            self.events.append(("run", which))
            self.work(which)
            return int(which)

        try:
            yield run
        finally:
            self.events.append(("close", which))


def test_both_are_ready_before_either_runs_and_both_run_at_once() -> None:
    both = threading.Barrier(2, timeout=60)

    def meet(which: bool) -> None:
        both.wait()

    trees = Trees(meet)
    assert run_pair(trees, at_once=True) == (0, 1)
    assert [what for what, _ in trees.events] == ["open", "open", "run", "run", "close", "close"]


def test_one_after_the_other_shares_nothing() -> None:
    trees = Trees()
    assert run_pair(trees, at_once=False) == (0, 1)
    assert [what for what, _ in trees.events] == ["open", "run", "close"] * 2
    assert {which for _, which in trees.events[:3]} != {which for _, which in trees.events[3:]}


@pytest.mark.parametrize("at_once", [True, False])
def test_the_order_is_drawn(at_once: bool) -> None:
    first: set[bool] = set()
    for _ in range(64):
        trees = Trees()
        run_pair(trees, at_once=at_once)
        first.add(trees.events[0][1])
    assert first == {False, True}


@pytest.mark.parametrize("at_once", [True, False])
def test_what_fails_closes_both(at_once: bool) -> None:
    def fail(which: bool) -> None:
        if which:
            raise ValueError("no tree")

    trees = Trees(fail)
    with pytest.raises(ValueError, match="no tree"):
        run_pair(trees, at_once=at_once)
    opened, closed = (
        {which for what, which in trees.events if what == wanted} for wanted in ("open", "close")
    )
    assert opened == closed and True in opened
