"""Values checked against their definition, and one sentence for the first that breaks it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from lightning_smith.core.errors import UserError

_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_MISSING = ("missing", "missing_argument")
_NAMED = {
    "bool_type": "not true or false",
    "bool_parsing": "not true or false",
    "string_type": "no text",
    "list_type": "no list",
    "tuple_type": "no list",
    "dict_type": "no mapping of keys to values",
    "dataclass_type": "no mapping of keys to values",
    "dataclass_exact_type": "no mapping of keys to values",
    "path_type": "no path",
}
LEGAL = "config.yaml says what is legal"


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's checks of a type, which take long to make."""
    return TypeAdapter(kind)


def checked(kind: Any, values: Any, where: str = "") -> Any:
    """Return `values` as a `kind`. Raise UserError with the key of the first value that is not legal.

    `where` is the dotted key of the values themselves.
    """
    try:
        return adapter(kind).validate_python(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
    first = min(found, key=lambda each: (each["type"] not in _UNKNOWN, len(each["loc"])))
    raise UserError(_sentence(kind, values, first, where))


def _sentence(kind: Any, values: Any, error: ErrorDetails, where: str) -> str:
    path = [*([where] if where else []), *filter(_is_key, map(str, error["loc"]))]
    said, legal = error["msg"], LEGAL
    if error["type"] in _UNKNOWN:
        said = "there is no such key"
        legal = did_you_mean(path[-1], _keys(kind, error["loc"][:-1])) or LEGAL
    elif error["type"] in _MISSING:
        said, legal = "it is missing", "every key of config.yaml must be there"
    elif error["type"] == "refused":
        said, legal = error["ctx"]["said"], error["ctx"]["write"] or LEGAL  # pyright: ignore[reportTypedDictNotRequiredAccess]
    elif error["type"] in ("literal_error", "enum"):
        wanted = error["ctx"]["expected"].replace(" or ", ", ")  # pyright: ignore[reportTypedDictNotRequiredAccess]
        said = f"{error['input']!r} is none of {wanted}"
    elif error["type"] == "value_error":
        said = said.removeprefix("Value error, ")
    elif error["type"] in _NAMED:
        said = f"{error['input']!r} is {_NAMED[error['type']]}"
    return f"configuration key {'.'.join(path) or '(top level)'}: {said} ({legal})"


def _is_key(part: str) -> bool:
    """Return whether a part of a place in values is a key, and not what pydantic calls a key itself or a kind of
    value.
    """
    return part not in ("[key]", "str", "int", "float", "bool", "list[any]") and not part.startswith(
        "function-"
    )


def _keys(kind: Any, loc: Iterable[Any]) -> list[str]:
    """Return the keys of the section at a place in a definition; none if it is no section."""
    for name in loc:
        if is_dataclass(kind):
            kind = get_type_hints(kind).get(str(name))
        else:
            kind = next((each for each in getattr(kind, "__args__", ()) if _section(each)), None)
        kind = _section(kind)
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _section(kind: Any) -> Any:
    """Return the section that a type has, perhaps among others; None if it has none."""
    if is_dataclass(kind):
        return kind
    if getattr(kind, "__origin__", None) is dict:
        return kind
    return next((found for each in getattr(kind, "__args__", ()) if (found := _section(each))), None)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return `write <the closest known name>`, or None if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"write {close[0]}" if close else None


def refuse_foreign(value: Any, path: tuple[str, ...] = ()) -> None:
    """Raise UserError for keys that YAML reads as something else than text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise UserError(
                    f"configuration key {'.'.join((*path, str(key)))}: YAML reads the key {key!r} as no text "
                    f'(write "{key}", in quotes)'
                )
            refuse_foreign(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            refuse_foreign(inner, (*path, str(number)))
