"""A pytest plugin that writes the outcome of every test, and which functions ran, as JSON.

It runs inside `envs/testbed`, so it imports the standard library only. Environment variables:

- MINIATURE_OUT: the file to write: {"tests": {id: outcome}, "functions": [[file, first line], ...],
  "cpu_seconds": of this process and its children}.
- MINIATURE_TRACE: absolute folder or file; functions whose code is under it are recorded. Unset: none are.
- MINIATURE_MEMORY_MB: limit of the address space, so that a broken loop cannot fill the machine.
- MINIATURE_CPU_S: limit of the processor time, in whole seconds; SIGXCPU ends the process that reaches it.
"""

import json
import os
import pathlib
import resource
import sys

_outcomes = {}
_functions = set()


def _limit_resources():
    memory = int(os.environ["MINIATURE_MEMORY_MB"]) * 2**20
    cpu = int(os.environ["MINIATURE_CPU_S"])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _refuse_network(event, arguments):
    """Audit hook: connections stay on this machine, as in a sandbox that has the loopback device only."""
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else "localhost"
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if host not in (None, "", "localhost", "127.0.0.1", "::1"):
        raise OSError("the miniature's tests run without network")


def _record_functions(root):
    monitoring = sys.monitoring
    tool = monitoring.COVERAGE_ID
    monitoring.use_tool_id(tool, "miniature")

    def started(code, _offset):
        if code.co_filename.startswith(root):
            _functions.add((code.co_filename, code.co_firstlineno))
        return monitoring.DISABLE

    monitoring.register_callback(tool, monitoring.events.PY_START, started)
    monitoring.set_events(tool, monitoring.events.PY_START)


_limit_resources()
sys.addaudithook(_refuse_network)
if os.environ.get("MINIATURE_TRACE"):
    _record_functions(os.environ["MINIATURE_TRACE"])


def pytest_runtest_logreport(report):
    """A test has passed if its call passed, nothing else of it failed, and no failure was expected."""
    outcome = "xfail" if hasattr(report, "wasxfail") else report.outcome
    counts = report.when == "call" or outcome != "passed"
    if counts and _outcomes.get(report.nodeid) in (None, "passed"):
        _outcomes[report.nodeid] = outcome


def pytest_sessionfinish(session):
    report = {"tests": _outcomes, "functions": sorted(_functions), "cpu_seconds": sum(os.times()[:4])}
    text = json.dumps(report)
    pathlib.Path(os.environ["MINIATURE_OUT"]).write_text(text, encoding="utf-8")
