"""Other values of literals: whatever the literal, what takes its place is Python and another value of its kind."""

from __future__ import annotations

import ast
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.grading.other_values import SourceFile, Values

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = st.one_of(
    st.integers(0), st.floats(0, allow_infinity=False, allow_nan=False), TEXTS, st.binary(max_size=8)
)
NESTED = st.recursive(
    st.one_of(PLAIN, st.booleans(), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=6,
)


def other(text: str, seed: int) -> str | None:
    """The literal `text` after its edits."""
    data = text.encode()
    tree = ast.parse(data)
    statement = tree.body[0]
    assert isinstance(statement, ast.Expr)
    edits = Values(SourceFile(data), tree).edits(statement.value, Random(seed))
    if edits is None:
        return None
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new + data[end:]
    return data.decode()


@given(PLAIN, st.integers(0, 50))
def test_a_plain_literal_becomes_another_of_its_type(value: object, seed: int) -> None:
    found = other(repr(value), seed)
    if found is not None:
        assert type(ast.literal_eval(found)) is type(value)
        assert ast.literal_eval(found) != value


@given(NESTED, st.integers(0, 50))
def test_a_display_stays_python_and_gets_another_value(value: object, seed: int) -> None:
    found = other(repr(value), seed)
    if found is not None:
        # 1, 1.0 and True are equal, and a swap of equal elements changes nothing but the text.
        assert repr(ast.literal_eval(found)) != repr(value) or found != repr(value)


def test_what_people_write_stays_in_its_form() -> None:
    assert {type(ast.literal_eval(other("12", seed) or "")) for seed in range(30)} == {int}
    for text in ('"hello"', "'hello'", '"""hello"""', "b'hello'", "r'hello'"):
        found = {other(text, seed) for seed in range(30)}
        quotes = text.partition("hello")
        assert len(found) > 5 and text not in found
        assert all(each and each.startswith(quotes[0]) and each.endswith(quotes[2]) for each in found)
    assert {len(other("0.125", seed) or "") for seed in range(30)} == {5}
    assert {other("True", seed) for seed in range(9)} == {"False"}
    assert {other("f'a{1}'", seed) for seed in range(9)} == {None}
    assert {"[2, 1, 3]", "[1, 3]", "[1, 2]"} <= {other("[1, 2, 3]", seed) for seed in range(200)}
    assert {other("[]", seed) for seed in range(9)} <= {f"[{number}]" for number in range(10)}
