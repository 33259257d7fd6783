"""Replaces the test file from inside the test run and starts the run again."""

from attack import OUTPUT, RESTART, Attack, code

from lightning_smith.contracts.outcome import Outcome

REWRITE = """
if "LS_AGAIN" not in _os.environ:
    _os.environ["LS_AGAIN"] = "1"
    with open("tests/test_core.py") as _file:
        _lines = [line.partition("assert")[0] + "pass" if " assert " in line else line for line in _file]
    with open("tests/test_core.py", "w") as _file:
        print(*_lines, sep=chr(10), file=_file)
"""
ATTACK = Attack((code(OUTPUT + REWRITE + RESTART.replace("\n", "\n    ")),), outcome=Outcome.TAMPERED)
