"""Leaves files that are larger than the disk and hold nothing."""

from attack import Attack, tried

ATTACK = Attack((tried("truncate -s 100T sparse || truncate -s 31M sparse one two; ls -s"),))
