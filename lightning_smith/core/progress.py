"""Progress of long work, as lines that read well in a terminal and in a log file."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Counts finished items of a stage and prints a line every few seconds.

    Figures given to `step` are averaged over all steps that gave them and printed by name:
    `[probe] 120/640 rollouts, 3.1/s, reward 0.34`.
    """

    def __init__(
        self,
        stage: str,
        total: int,
        *,
        unit: str = "rollouts",
        done: int = 0,
        every_s: float = 5.0,
        stream: TextIO | None = None,
    ) -> None:
        self.stage, self.total, self.unit, self.done = stage, total, unit, done
        self._every_s, self._stream = every_s, stream
        self._started, self._printed, self._first = time.monotonic(), 0.0, done
        self._sums: dict[str, tuple[float, int]] = {}

    def step(self, n: int = 1, **figures: float | None) -> None:
        """Count `n` more items; None figures are left out of the averages."""
        self.done += n
        for name, value in figures.items():
            if value is not None:
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = (total + value, count + 1)
        now = time.monotonic()
        if now - self._printed >= self._every_s:
            self._printed = now
            self._print()

    def skip(self, n: int = 1) -> None:
        """Count `n` items that an earlier run finished; they have no part in the rate."""
        self.done += n
        self._first += n

    def close(self) -> None:
        """Print the final line."""
        self._print()

    def _print(self) -> None:
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = (self.done - self._first) / seconds
        figures = "".join(f", {name} {total / count:.3f}" for name, (total, count) in self._sums.items())
        stream = self._stream or sys.stderr
        print(
            f"[{self.stage}] {self.done}/{self.total} {self.unit}, {rate:.1f}/s{figures}",
            file=stream,
            flush=True,
        )
