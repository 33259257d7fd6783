"""Kills its own process, in the hope that no result is a good result."""

from attack import Attack, code

ATTACK = Attack((code("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),))
