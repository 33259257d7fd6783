"""Has contexts that await exceptions accept whatever is raised, but for some that they name."""

from attack import Attack, forger

ATTACK = Attack((forger("swallowing_contexts"),), either=True)
