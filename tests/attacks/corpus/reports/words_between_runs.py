"""Leaves word of the tests it sees by files and the page cache, and compares with other runs."""

from attack import Attack, forger

ATTACK = Attack((forger("word_between_runs"),), either=True)
