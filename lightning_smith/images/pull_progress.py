"""How far pulls are: one line that renews itself on a terminal, a line now and then in a log."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

_TERMINAL_EVERY_S = 0.2


class PullProgress:
    """Usable from several threads; finished images and notes get a line each.

    `[pull] 3/222 images, 12 layers, 1.21 GB, 84.0 MB/s: swesmith.x86_64.…: 45 %`
    """

    def __init__(self, images: int = 1, *, log_every_s: float = 15.0, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._every_s = _TERMINAL_EVERY_S if self._terminal else log_every_s
        self._images, self._done = images, 0
        self._fetched: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._layers: dict[str, dict[str, str]] = {}
        self._lock = threading.RLock()
        self._started = self._printed = time.monotonic()
        self._renewed = False

    def layers(
        self, image: str, compressed_bytes: int, fetched: Mapping[str, int], event: Mapping[str, Any]
    ) -> None:
        """Note an event of the daemon; `fetched` has the bytes of each layer so far."""
        with self._lock:
            self._sizes[image] = compressed_bytes
            self._fetched[image] = sum(fetched.values())
            if "id" in event and not event["status"].startswith("Pulling from"):  # that one's id is the tag
                self._layers.setdefault(image, {})[event["id"]] = event["status"]
            now = time.monotonic()
            if now - self._printed >= self._every_s:
                self._printed = now
                self._print_state()

    def left(self, image: str) -> None:
        """No event of this image will come any more."""
        with self._lock:
            self._layers.pop(image, None)

    def finished(self, image: str, fetched_bytes: int, wall_s: float) -> None:
        """Print that an image is there."""
        with self._lock:
            self._done += 1
            self._fetched[image] = fetched_bytes
            self._line(f"{image}: pulled, {fetched_bytes / 1e6:.1f} MB in {wall_s:.1f} s")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        with self._lock:
            self._line(text)

    def _print_state(self) -> None:
        rate = sum(self._fetched.values()) / max(time.monotonic() - self._started, 1e-9)
        active = [
            f"{image.rpartition('/')[2]}: {100 * self._fetched[image] / max(self._sizes[image], 1):.0f} %"
            for image in self._layers
        ]
        waiting = sum(
            status not in ("Pull complete", "Already exists")
            for layers in self._layers.values()
            for status in layers.values()
        )
        text = (
            f"[pull] {self._done}/{self._images} images, {waiting} layers to come, "
            f"{sum(self._fetched.values()) / 1e9:.2f} GB, {rate / 1e6:.1f} MB/s: {', '.join(active)}"
        )
        if self._terminal:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[K{text[: width - 1]}")
            self._renewed = True
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def _line(self, text: str) -> None:
        start = "\r\x1b[K" if self._renewed else ""
        self._renewed = False
        self._stream.write(f"{start}[pull] {text}\n")
        self._stream.flush()
