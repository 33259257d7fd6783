"""Runs inside an image, by /opt/agent's Python, and prints one JSON object. Imports the standard library alone.

Its argument is `{"checks": bool, "test_command": [words], "user": the image's, "agent": module}`.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import importlib.metadata
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys

PACKAGE_FOLDERS = (
    "/opt/miniconda3/lib/python*/site-packages",
    "/opt/miniconda3/envs/*/lib/python*/site-packages",
    "/usr/lib/python*/dist-packages",
    "/usr/lib/python*/site-packages",
    "/usr/local/lib/python*/dist-packages",
    "/usr/local/lib/python*/site-packages",
)
TREE = "/testbed"
ACTIVATE = "/opt/miniconda3/bin/activate"


def hash_entry(path: str, into: hashlib._Hash) -> int:
    """Add names, kinds, modes and contents at and below a path; returns the number of files."""
    status = os.lstat(path)
    into.update(
        f"{os.fsencode(path)!r} {stat.S_IFMT(status.st_mode)} {stat.S_IMODE(status.st_mode)}\n".encode()
    )
    if stat.S_ISLNK(status.st_mode):
        into.update(os.fsencode(os.readlink(path)))
    elif stat.S_ISDIR(status.st_mode):
        return sum(hash_entry(f"{path}/{name}", into) for name in sorted(os.listdir(path)))
    elif stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            into.update(hashlib.file_digest(file, "sha256").digest())
        return 1
    return 0


def environment() -> dict[str, dict[str, object]]:
    found = {}
    for folder in sorted({path for pattern in PACKAGE_FOLDERS for path in glob.glob(pattern)}):
        entries, files = {}, 0
        for name in sorted(os.listdir(folder)):
            digest = hashlib.sha256()
            files += hash_entry(f"{folder}/{name}", digest)
            entries[name] = digest.hexdigest()
        packages = {
            str(d.metadata["Name"]).lower().replace("_", "-"): d.version
            for d in importlib.metadata.distributions(path=[folder])
            if d.metadata["Name"]
        }
        found[folder] = {"files": files, "packages": dict(sorted(packages.items())), "entries": entries}
    return found


def of_others(user: str, tracked: set[str]) -> tuple[str, int] | None:
    """Return the first folder or tracked file of the repository that is not of the image's user, and its owner."""
    name = user.partition(":")[0] or "0"
    own = int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid
    for folder, _, names in os.walk(TREE):
        files = (path for entry in names if (path := f"{folder}/{entry}") in tracked)
        for path in (folder, *files):
            if (owner := os.lstat(path).st_uid) != own:
                return path, owner
    return None


def problems(test_command: list[str], user: str) -> list[str]:
    found = [f"has no {name}" for name in ("bash", "git") if shutil.which(name) is None]
    if not os.path.isdir(f"{TREE}/.git"):
        return [*found, f"has no git repository at {TREE}"]
    if found:
        return found
    variables = {
        **os.environ,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    status = subprocess.run(
        ["git", "-C", TREE, "status", "--porcelain"], capture_output=True, text=True, env=variables
    )
    if status.returncode != 0:
        found.append(f"has a repository that git cannot read ({status.stderr.strip()})")
    elif status.stdout:
        lines = status.stdout.splitlines()
        found.append(f"has changes in {TREE} ({len(lines)}, the first is {lines[0].strip()!r})")
    listed = subprocess.run(["git", "-C", TREE, "ls-files", "-z"], capture_output=True, env=variables).stdout
    if others := of_others(user, {f"{TREE}/{os.fsdecode(path)}" for path in listed.split(b"\0")}):
        found.append(
            f"has {others[0]}, which belongs to user {others[1]} and not to its own ({user or 'root'})"
        )
    script = f'[ ! -f {ACTIVATE} ] || . {ACTIVATE} testbed; "$@"'
    command = ["bash", "-c", script, "bash", *test_command, "--version"]
    tested = subprocess.run(command, cwd=TREE, capture_output=True, text=True, env=variables)
    if tested.returncode != 0:
        last = ((tested.stderr or tested.stdout).strip().splitlines() or ["no output"])[-1]
        found.append(f"cannot run its test command {' '.join(test_command)} ({last})")
    return found


def main() -> None:
    request = json.loads(sys.argv[1])
    answer: dict[str, object] = {"environment": environment()}
    if request["checks"]:
        import openai

        agent = importlib.import_module(request["agent"])

        openai.OpenAI(api_key="none", base_url="http://127.0.0.1:9/v1").close()
        assert str(agent.__file__).startswith("/opt/agent/")
        answer["agent"] = {"python": sys.version.split()[0], "openai": openai.__version__}
        answer["problems"] = problems(request["test_command"], request["user"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
