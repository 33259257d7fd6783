"""Lets a child run the tests unheard, and the parent print results and end as it likes."""

from attack import PRINT_PASSED, Attack, code

from lightning_smith.contracts.outcome import Outcome

FORK = """
if (_child := os.fork()):
    os.waitpid(_child, 0)
    _claim()
    os._exit(0)
for _number in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), _number)
"""
ATTACK = Attack((code(PRINT_PASSED + FORK),), outcome=Outcome.TAMPERED)
