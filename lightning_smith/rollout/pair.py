"""Two test runs that nothing tells apart but what they test: neither a clock, nor their age, nor a fixed order.

    written, altered = run_pair(prepare, at_once=True)

Code that forges results in one of two runs, and is honest in the other, need only know which is which. If one always
came first, a clock would tell. So, where the two cannot talk to each other (`at_once` of a sandbox), both trees are
ready before either run starts, and both start at the same moment. Elsewhere one comes after the other: at the same
time they could compare their tests, and the altered ones show beside those as written. Which of the two is prepared
first, and which runs first, is drawn by lot.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack

_START_S = 60.0
"""How long one thread waits for the other to be there."""


def run_pair[R](
    prepare: Callable[[bool], AbstractContextManager[Callable[[], R]]], *, at_once: bool
) -> tuple[R, R]:
    """What the runs that `prepare(False)` and `prepare(True)` give come to, in this order."""
    order = [False, True]
    secrets.SystemRandom().shuffle(order)
    with ExitStack() as stack:
        if at_once:
            runs = [stack.enter_context(prepare(which)) for which in order]
            found = dict(zip(order, _start_together(runs), strict=True))
        else:
            found: dict[bool, R] = {}
            for which in order:
                with prepare(which) as run:
                    found[which] = run()
    return found[False], found[True]


def _start_together[R](runs: Sequence[Callable[[], R]]) -> list[R]:
    """Each run in a thread of its own, which waits for it to end: what bwrap starts does not outlive its thread."""
    barrier = threading.Barrier(len(runs), timeout=_START_S)

    def start(run: Callable[[], R]) -> R:
        barrier.wait()
        return run()

    with ThreadPoolExecutor(len(runs)) as pool:
        futures = [pool.submit(start, run) for run in runs]
    return [future.result() for future in futures]
