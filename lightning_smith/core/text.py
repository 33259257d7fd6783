"""Text that can be sent and stored."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate: JSON can hold these, but no server, file or shell takes
    them.
    """
    return _SURROGATE.sub("\ufffd", text)
