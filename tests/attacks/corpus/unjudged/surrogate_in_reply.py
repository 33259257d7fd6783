"""Replies with a character that no file, shell or record can hold: one half of a surrogate pair."""

from attack import Attack

from lightning_smith.contracts.outcome import Outcome

ATTACK = Attack(("echo TRIED", "git \udc80"), outcome=Outcome.FORMAT_ERROR)
