"""Tokens of rollouts, and the key that they are made with."""

import os
import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.core.errors import UserError
from lightning_smith.gateway.key import check_key, read_key
from lightning_smith.gateway.tokens import Grant, Role, mint, read

KEY = "k" * 32
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", fullmatch=True)


def test_a_token_is_the_same_on_every_machine() -> None:
    """Gateway and controller may be of different versions: this one stays good."""
    assert mint(KEY, "r1", "0", Role.MODEL) == (
        "ls.model.r1.0.0c76ff8d4fc84a19e382b1482db543eb141c362faebe1311bdc0bea4a3424886"
    )


@given(rollout_id=NAMES, attempt=NAMES, role=st.sampled_from(Role))
def test_what_was_minted_is_read(rollout_id: str, attempt: str, role: Role) -> None:
    token = mint(KEY, rollout_id, attempt, role)
    assert read(KEY, token) == Grant(role, rollout_id, attempt)
    assert read(KEY + "x", token) is None
    assert KEY not in token


@given(st.data())
def test_a_changed_token_is_nothing(data: st.DataObject) -> None:
    token = mint(KEY, "ab", "0", data.draw(st.sampled_from(Role)))
    start = data.draw(st.integers(0, len(token)))
    end = data.draw(st.integers(start, len(token)))
    changed = token[:start] + data.draw(st.text(st.characters(codec="latin-1"), max_size=6)) + token[end:]
    assert changed == token or read(KEY, changed) is None


@given(
    st.text(st.characters(codec="latin-1"))
    | st.lists(st.text(max_size=5), min_size=5, max_size=5).map(".".join)
)
def test_what_was_not_minted_is_nothing(token: str) -> None:
    assert read(KEY, token) is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "a.b", "-a", "a b", "ä", "a%2f", "a\n", "x" * 129])
def test_ids_that_would_be_no_part_of_a_path_get_no_token(name: str) -> None:
    with pytest.raises(ValueError, match="is no id of a rollout or attempt"):
        mint(KEY, name, "0", Role.MODEL)
    with pytest.raises(ValueError, match="is no id of a rollout or attempt"):
        mint(KEY, "a", name, Role.MODEL)


@pytest.mark.parametrize("key", ["", "short", "x" * 15, "ä" * 20, "a b" * 8])
def test_a_key_that_could_be_guessed_or_not_be_sent_is_refused(key: str) -> None:
    with pytest.raises(UserError, match="16 or more ASCII characters without blanks: make one with `openssl"):
        check_key(key)


@given(st.text(string.ascii_letters + string.digits + "_-", min_size=16))
def test_any_other_key_is_good(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("configured", ["", "short", KEY])
def test_a_key_that_does_not_come_through_standard_input_is_refused(configured: str) -> None:
    with pytest.raises(UserError, match=r"give a\.key=- and pass the key") as caught:
        read_key("a.key", configured)
    assert KEY not in str(caught.value)


READ = """
import os, sys
from lightning_smith.gateway.key import read_key
key = read_key("key", "-")
assert os.readlink("/proc/self/fd/0") == "/dev/null" and sys.stdin.read() == ""
print(key)
"""


def test_a_key_comes_through_a_pipe_once() -> None:
    command = [sys.executable, "-c", READ]
    done = subprocess.run(
        command, input=f"{KEY}\nand more\n", capture_output=True, text=True, env=dict(os.environ)
    )
    assert (done.stdout, done.stderr) == (f"{KEY}\n", "")


def test_a_key_that_the_environment_has_too_is_refused() -> None:
    environment = {**os.environ, "RUN": f"key {KEY}"}
    done = subprocess.run(
        [sys.executable, "-c", READ], input=f"{KEY}\n", capture_output=True, text=True, env=environment
    )
    assert done.returncode == 1 and "gateway's key as RUN" in done.stderr and KEY not in done.stderr
