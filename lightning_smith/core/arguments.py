"""Numbers on a script's command line: one that is out of range is refused by its option's name."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(least: int) -> Callable[[str], int]:
    """Type of an option that takes a whole number, `least` or more."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} must be at least {least}")
        return value

    return convert


def number(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """Type of an option that takes a number from `low` to `high`, with `above` not `low` itself."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            bounds = f"above {low:g}" if above else f"at least {low:g}"
            raise argparse.ArgumentTypeError(
                f"{text} must be {bounds}" + (f" and at most {high:g}" if math.isfinite(high) else "")
            )
        return value

    return convert
