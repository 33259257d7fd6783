"""Answers of SWE-smith's own harness, for processes of other environments. Runs in envs/smith.

    python -m lightning_smith.grading.smith_server 3   # a listening socket; ends with its standard input

A connection carries one question and one answer, each a line of JSON. `grading/smith_client.py` is the other side.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from swesmith.harness.grading import get_eval_report
from swesmith.profiles import registry

from lightning_smith.grading.profiles import PYTHON
from lightning_smith.grading.smith_profiles import SmithProfiles


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to one question, `error` where there is none."""
    try:
        if question["op"] == "plan":
            return _plan(question["instance"], question["fail_to_pass"])
        if question["op"] == "report":
            return _report(question["instance"], question["log"], question["fail_to_pass"])
        return {"swesmith": version("swesmith"), "swebench": version("swebench")}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _plan(instance: dict[str, Any], fail_to_pass: bool) -> dict[str, Any]:
    """Return how the harness would run an instance's tests: the profile's command, and the paths that it adds to it."""
    profile = SmithProfiles().profile(instance["repo"], instance["image_name"])
    if profile.language != PYTHON:
        language = profile.language or "unknown"
        return {"error": f"swesmith has no Python profile of {instance['repo']} (language: {language})"}
    known = registry.get_from_inst(instance)
    command, paths = known.get_test_cmd(instance, f2p_only=fail_to_pass)
    added = " ".join(map(str, paths))
    names_paths = bool(paths) and command.endswith(f" {added}")
    return {
        "command": command.removesuffix(f" {added}") if names_paths else command,
        "paths": [str(path) for path in paths] if names_paths else [],
        "test_files": list(dict.fromkeys(path for part in known.get_test_files(instance) for path in part)),
        "line_forms": profile.line_forms,
        "timeout_s": profile.timeout_s,
    }


def _report(instance: dict[str, Any], log: str, fail_to_pass: bool) -> dict[str, Any]:
    """Return whether the harness counts an instance as resolved by a log."""
    prediction = {"instance_id": instance["instance_id"], "model_patch": "-", "model_name_or_path": "-"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test_output.txt"
        path.write_text(log)
        report = get_eval_report(prediction, instance, str(path), f2p_only=fail_to_pass)
    return {"resolved": report["resolved"], "tests_status": report.get("tests_status")}


def _serve(connection: socket.socket) -> None:
    with connection, connection.makefile("rwb") as stream:
        if line := stream.readline():
            stream.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


def _end_with_input() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def main(descriptor: int) -> None:
    """Answer until standard input ends, a thread a connection."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    with socket.socket(fileno=descriptor) as listener:
        while True:
            threading.Thread(target=_serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main(int(sys.argv[1]))
