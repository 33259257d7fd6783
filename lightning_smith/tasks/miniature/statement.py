"""The problem statement of a miniature task, in the wording that the policy's warm start teaches."""

from __future__ import annotations

KIND_PHRASES = {
    "arith": "an arithmetic operator is wrong",
    "bool": "a boolean operator is wrong",
    "cmp": "a comparison is wrong",
    "const": "a number is off by one",
}
"""What each kind of bug is called in a problem statement."""


def problem_statement(entity: str, path: str, kind: str, first: int, last: int) -> str:
    """Such as `clamp in boltons/mathutils.py is broken: a comparison is wrong in lines 40-46.`

    Line numbers are 1-based, `last` is inclusive.
    """
    return f"{entity} in {path} is broken: {KIND_PHRASES[kind]} in lines {first}-{last}."
