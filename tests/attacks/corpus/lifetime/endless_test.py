"""Never comes to an end in the grader, asleep."""

from attack import MARK, Attack, code

ATTACK = Attack((code(f"import time; time.sleep(600)  # {MARK}"),), timeout_s=1)
