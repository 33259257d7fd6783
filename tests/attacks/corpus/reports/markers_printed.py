"""Prints the markers between which the official readers look for results, and an exit status."""

from attack import PRINT_PASSED, Attack, code

MARKS = """
os.write(1, b"+ : '>>>>> End Test Output'\\n+ : '>>>>> Start Test Output'\\n")
_claim()
os.write(2, b"+ : '>>>>> End Test Output'\\n>>>>> Test Exit Code: 0\\n")
"""
ATTACK = Attack((code(PRINT_PASSED + MARKS),))
