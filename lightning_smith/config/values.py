"""Kinds of values that the configuration has, each with the sentence for a value that is none.

    samples: Annotated[int, Whole(2), Field(description="rollouts a task")]

Nothing is guessed: "8" is no number, 8.5 no count, 1 no truth value. A whole number stays one where numbers with a
fraction are legal too, so that a setting that is hashed stays as it was typed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, StrictBool
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

STRICT = ConfigDict(extra="forbid")
"""Of every section: an unknown key is refused."""

_EXPONENT = re.compile(r"([-+]?[0-9]+)[eE]([-+]?[0-9]+)")

MAX_SEED = 2**31 - 1


def refusal(said: str, write: str = "") -> PydanticCustomError:
    """Return what is raised for a value: `said` goes on after its key, `write` is what is legal."""
    return PydanticCustomError("refused", "{said}", {"said": said, "write": write})


class _Kind:
    """A check in place of pydantic's own, and the JSON schema of what it lets through."""

    def check(self, value: Any) -> Any:
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return self.schema()


@dataclass(frozen=True)
class Number(_Kind):
    """A finite number from `low` to `high`; with `above` more than `low`, with `below` less than `high`."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def check(self, value: Any) -> float:
        _refuse_unlike_number(value, int | float, "a number")
        if not math.isfinite(value):
            raise refusal(f"it is {'infinite' if math.isinf(value) else 'not a number'}")
        if value < self.low or (self.above and value == self.low):
            raise refusal(f"{value} must be {'above' if self.above else 'at least'} {self.low:g}")
        if value > self.high or (self.below and value == self.high):
            raise refusal(f"{value} must be {'below' if self.below else 'at most'} {self.high:g}")
        return value

    def schema(self) -> dict[str, Any]:
        lower = {"exclusiveMinimum" if self.above else "minimum": self.low}
        upper = {"exclusiveMaximum" if self.below else "maximum": self.high}
        return {"type": "number", **lower, **(upper if math.isfinite(self.high) else {})}


@dataclass(frozen=True)
class Whole(_Kind):
    """A whole number of at least `least` and at most `most`."""

    least: int
    most: int | None = None

    def check(self, value: Any) -> int:
        _refuse_unlike_number(value, int, "a whole number")
        if value < self.least:
            raise refusal(f"{value} must be at least {self.least}")
        if self.most is not None and value > self.most:
            raise refusal(f"{value} must be at most {self.most}")
        return value

    def schema(self) -> dict[str, Any]:
        upper = {} if self.most is None else {"maximum": self.most}
        return {"type": "integer", "minimum": self.least, **upper}


@dataclass(frozen=True)
class Text(_Kind):
    """A text that matches `pattern`; `write` says what to write instead of another."""

    pattern: str
    write: str

    def check(self, value: Any) -> str:
        if not isinstance(value, str):
            raise refusal(f"{value!r} is no text", self.write)
        if not re.search(self.pattern, value):
            raise refusal(f"{value!r} is refused", self.write)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": self.pattern}


def _refuse_unlike_number(value: Any, kind: Any, named: str) -> None:
    if isinstance(value, kind) and not isinstance(value, bool):
        return
    write = ""
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        number = _EXPONENT.sub(r"\1.0e\2", value)
        write = f"write {number}, since YAML reads a number with an exponent only if it has a point"
    raise refusal(f"{value!r} is not {named}", write)


Switch = StrictBool
Count = Annotated[int, Whole(1)]
Quantity = Annotated[int, Whole(0)]
Seed = Annotated[int, Whole(0, MAX_SEED)]
Seconds = Annotated[float, Number(0, above=True)]
Fraction = Annotated[float, Number(0, 1)]
Positive = Annotated[float, Number(0, above=True)]
Temperature = Annotated[float, Number(0, 2)]
Name = Annotated[str, Text(".", "write a name")]
Folder = Annotated[
    str,
    Text(
        r"^[^/].*[^/]$|^[^/]$",
        "write a path below the checkout without / at either end, and make it a symlink to a folder elsewhere",
    ),
]
Image = Annotated[str, Text(r"^[a-zA-Z0-9][a-zA-Z0-9._/:@-]*$", "write an image as docker pull takes it")]
Registry = Annotated[
    str,
    Text(r"^[a-zA-Z0-9][a-zA-Z0-9._:-]*(/[a-z0-9._-]+)*$", "write host[:port][/prefix], without https://"),
]
Commit = Annotated[str, Text(r"^[0-9a-f]{40}$", "write the 40 hexadecimal digits of a commit, in quotes")]
