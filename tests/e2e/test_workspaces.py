"""What holds in every kind of workspace: the same commands, limits and diffs in bubblewrap, in Docker and in pods."""

from __future__ import annotations

import difflib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tiny_image
from kinds import Kind
from processes import processes

from lightning_smith.grading.validate import reverse_command
from lightning_smith.images.daemon import LABEL, Daemon
from lightning_smith.repositories.local import LocalImage
from lightning_smith.sandbox.bwrap import Bwrap, ResourceLimits
from lightning_smith.sandbox.diff import DiffRefusedError, apply_diff
from lightning_smith.sandbox.workspace import BwrapWorkspace, Workspace

pytestmark = [
    pytest.mark.e2e,
    tiny_image.NEEDS_TESTBED,
]

SECRET = "sk-not-for-the-policy"


@pytest.fixture
def workspace(kind: Kind, tmp_path: Path) -> Iterator[Workspace]:
    with kind.open(tmp_path / "ws", keep_bytes=4000) as workspace:
        yield workspace


def text(workspace: Workspace, command: str, timeout_s: float = 60) -> str:
    return workspace.execute(command, timeout_s).output.decode(errors="replace")


# ----------------------------------------------------------------------------------------------------- what is seen


def test_commands_see_the_task_and_no_secrets(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_KEY", SECRET)
    monkeypatch.setenv("LS_REPORT_TOKEN", SECRET)
    monkeypatch.setenv("AGL_EVENT_URL", "http://127.0.0.1:1/events")
    with kind.open(tmp_path / "ws") as workspace:
        seen = text(
            workspace,
            "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'; ls -a / /testbed",
        )
        assert SECRET not in seen and "AGL" not in seen and "README" in seen
        assert ".git\n" not in seen
        assert workspace.execute("cat src/widget/core.py", 60).returncode == 0
        assert workspace.execute("cat tests/test_core.py", 60).returncode == 1
        links = text(workspace, "for fd in /proc/self/fd/*; do readlink $fd; done")
        assert {line.partition(":")[0] for line in links.splitlines() if line} <= {
            "/dev/null",
            "pipe",
            "/run/task/command",
        }


def test_no_other_commit_can_be_reached(workspace: Workspace, kind: Kind) -> None:
    """Neither branches nor objects: `git rev-list --all --not HEAD` has nothing to list, since there is no HEAD."""
    assert (
        text(
            workspace,
            "find / -xdev \\( -name '*.pack' -o -name 'packed-refs' -o -name '.git' \\) 2>/dev/null",
        )
        == ""
    )
    assert workspace.execute("git rev-list --all", 60).returncode != 0
    tips = [kind.image.commit(revision) for revision in ("main", f"{tiny_image.TASK}~1", tiny_image.TASK)]
    where = "/testbed /tmp /run" if kind.name == "bwrap" else "/ --exclude-dir=proc --exclude-dir=sys"
    for commit in tips:
        assert text(workspace, f"grep -rls {commit} {where}") in ("", "/run/task/command\n")
        assert workspace.execute(f"git cat-file -e {commit}", 60).returncode != 0
    fixed = tiny_image.FIXED_LINE.strip()
    assert text(workspace, f"grep -rlF '{fixed}' /testbed") == ""


def test_there_is_no_network(workspace: Workspace) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {server.server_port}), 5)"
        assert subprocess.run([sys.executable, "-c", connect], check=False).returncode == 0
        seen = workspace.execute(f'python -c "{connect}"', 60)
    assert seen.returncode == 1 and b"Connection refused" in seen.output
    assert workspace.execute("cat < /dev/tcp/1.1.1.1/80", 60).returncode != 0
    name = socket.gethostname()
    assert (
        workspace.execute(f"python -c \"import socket; socket.gethostbyname('{name}.')\"", 60).returncode != 0
    )


def test_the_package_can_be_imported_and_tested(workspace: Workspace) -> None:
    seen = workspace.execute(
        "python -c 'import widget; print(widget.__file__)'; python -m pytest --version", 60
    )
    assert seen.output.startswith(b"/testbed/src/widget/__init__.py\npytest 8")


def test_commands_have_no_capability_and_get_none(workspace: Workspace) -> None:
    seen = text(workspace, "grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status")
    assert [line.split()[1].strip("0") for line in seen.splitlines()] == ["", "", "", "", "1"]
    for command in (
        "mount -t tmpfs none /mnt", "chroot / true", "unshare -m true", "unshare -Ur true",
        "mknod /tmp/sda b 8 0", "kill -9 1", "kill -STOP 1", "kill -TERM 1",
    ):  # fmt: skip
        seen = workspace.execute(f"{command} && sleep 0.1 && cat /proc/1/mem", 60)
        assert seen.returncode != 0 and not seen.timed_out, command
    assert text(workspace, "echo alive") == "alive\n"


EXECUTOR_ATTACKS = """
import os, resource, signal
def refused(name, attack):
    try:
        attack()
    except OSError:
        return
    print("not refused:", name)
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTERM):
    refused(f"signal {number}", lambda number=number: os.kill(1, number))
refused("prlimit", lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)))
refused("priority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
refused("affinity", lambda: os.sched_setaffinity(1, {0}))
for path in ("mem", "environ", "maps", "fd/0", "fd/1", "root", "cwd", "map_files", "ns/pid"):
    refused(path, lambda path=path: (os.listdir if path in ("map_files", "root", "cwd") else open)(f"/proc/1/{path}"))
for path in ("oom_score_adj", "mem", "fd/1", "clear_refs", "setgroups"):
    refused(f"write {path}", lambda path=path: open(f"/proc/1/{path}", "w").write("1000"))
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, 1, 0, 0) != -1:
    print("not refused: ptrace")
for call in ("setuid", "setgid"):
    refused(call, lambda call=call: getattr(os, call)(64999))
print("tried")
"""


def test_commands_cannot_reach_the_executor(kind: Kind, workspace: Workspace) -> None:
    if kind.name == "bwrap":
        pytest.skip("bubblewrap has no executor")
    seen = workspace.execute(f"cat > /tmp/a.py <<'EOF'\n{EXECUTOR_ATTACKS}\nEOF\npython /tmp/a.py", 60)
    assert seen.output == b"tried\n"
    assert workspace.execute("echo alive", 60).output == b"alive\n"


def test_the_machine_has_settings_and_keys_of_its_own(kind: Kind, workspace: Workspace) -> None:
    """A harness that runs as root lends its commands the owner of /proc/sys and the session's keyring."""
    writable = "find /proc -writable -type f -not -path '/proc/[0-9]*' -not -path '/proc/*self/*' 2>/dev/null"
    if kind.name == "pod":
        # A pod cannot have more of /proc read-only. Who writes to these needs a capability, or gets but a notice.
        writable += " | grep -v -e ^/proc/mtrr$ -e ^/proc/pressure/"
        assert (
            workspace.execute("[ -e /proc/mtrr ] || exit 1; echo disable=99 > /proc/mtrr", 60).returncode != 0
        )
    regular = (
        f"for file in $({writable}); do [ -f $file ] && echo $file; done"  # Docker masks some by /dev/null
    )
    assert workspace.execute(f"{regular} | head -3", 60).output == b""
    same = "cat /proc/sys/kernel/core_pattern > /tmp/same; cat /tmp/same > /proc/sys/kernel/core_pattern"
    seen = workspace.execute(same, 60)
    assert seen.returncode == 1 and b"Read-only file system" in seen.output
    keyring = "import ctypes; print(ctypes.CDLL(None).syscall(250, 0, -3, 0))"
    assert workspace.execute(f"python -c '{keyring}'", 60).output == b"-1\n"
    vsock = workspace.execute("python -c 'import socket; socket.socket(socket.AF_VSOCK)'", 60)
    assert vsock.returncode == 1 and b"Address family not supported" in vsock.output
    assert workspace.execute("cat /proc/self/oom_score_adj", 60).output == b"1000\n"


# ----------------------------------------------------------------------------------------------------------- limits


def test_time_limits_leave_nothing_behind(workspace: Workspace) -> None:
    def run(command: str, timeout_s: float = 2) -> tuple[int, bool, bytes, float]:
        started_s = time.monotonic()
        seen = workspace.execute(command, timeout_s)
        return seen.returncode, seen.timed_out, seen.output, time.monotonic() - started_s

    returncode, timed_out, _, wall_s = run("sleep 3011 & python3 -c 'while True: pass # 3012'")
    assert (returncode, timed_out) == (-1, True) and wall_s < 12
    assert processes("sleep 3011", "pass # 3012") == []
    assert run("ps -eo args | grep -cE '[s]leep 3011|[w]hile True'", 60)[2] == b"0\n"
    _, timed_out, _, wall_s = run("bash -c \"trap '' TERM INT; while :; do sleep 1; done\"")
    assert timed_out and wall_s < 12
    assert run("exit 124", 60)[:2] == (124, False)
    assert run("bash -c 'kill -9 $$'", 60)[:2] == (137, False)
    assert run("kill -9 $$", 60)[:2] == (137, False)
    assert run("timeout 1 sleep 9", 60)[:2] == (124, False)
    assert run("printf partial; sleep 3013")[1:3] == (True, b"partial")
    assert run("(sleep 3014 >/dev/null 2>&1 &) ; echo ok", 60)[1:3] == (False, b"ok\n")
    assert run("setsid nohup sleep 3015 & disown; exec >&- 2>&-; exit 3", 60)[:2] == (3, False)
    assert processes("sleep 3011", "sleep 3013", "sleep 3014", "sleep 3015") == []


def test_the_harness_ends_and_so_does_everything(kind: Kind, tmp_path: Path, daemon: Daemon) -> None:
    """Killed, it cannot clean up: the kernel or the daemon does."""
    if kind.name == "bwrap":
        pytest.skip("in test_rollout_bwrap.py")
    find = {
        "docker": "from lightning_smith.images.daemon import connect\n"
        "from lightning_smith.sandbox.docker import DockerSandbox\n"
        "sandbox = DockerSandbox.find(connect(), Path(sys.argv[1]))\n",
        "pod": "from lightning_smith.sandbox.pod import PodSandbox\n"
        "sandbox = PodSandbox.find(Path(sys.argv[1]))\n",
    }
    script = (
        "import sys; from pathlib import Path\n"
        "from lightning_smith.sandbox.container import ContainerWorkspace\n"
        f"{find[kind.name]}"
        "image = sandbox.prepare(sys.argv[2])\n"
        "workspace = ContainerWorkspace(sandbox, image, sys.argv[3], Path(sys.argv[4]))\n"
        "workspace.execute('sleep %d' % (3000 + 16), 100)\n"
    )
    arguments = [
        str(kind.sandbox.images.folder if kind.name == "docker" else kind.sandbox.folder),
        kind.image.image_name,
        tiny_image.TASK,
        str(tmp_path / "ws"),
    ]
    harness = subprocess.Popen([sys.executable, "-c", script, *arguments])
    mine: set[str] = set()
    try:
        deadline_s = time.monotonic() + 60
        while not processes("sleep 3016") and time.monotonic() < deadline_s:
            time.sleep(0.05)
        if kind.name == "docker":
            mine = {
                c["Id"]
                for c in daemon.api.containers(filters={"label": LABEL})
                if f"/{harness.pid}/" in c["Labels"][LABEL]
            }
            assert len(mine) == 1
    finally:
        harness.kill()
        harness.wait()
    while processes("sleep 3016") and time.monotonic() < deadline_s:
        time.sleep(0.05)
    while mine & {c["Id"] for c in daemon.api.containers(all=True)} and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert time.monotonic() < deadline_s


def test_long_commands_and_long_output(workspace: Workspace) -> None:
    command = "cat > big.txt <<'EOF'\n" + ("y" * 99 + "\n") * 2048 + "EOF\nwc -c big.txt"
    assert len(command) > 200_000
    assert workspace.execute(command, 60).output == b"204800 big.txt\n"
    seen = workspace.execute("echo first; head -c 3000000 /dev/zero | tr '\\0' x; printf last", 60)
    assert seen.output.startswith(b"first\n") and seen.output.endswith(b"last")
    assert len(seen.output) == 8000 and seen.dropped_bytes == 6 + 3_000_000 + 4 - 8000
    endless = workspace.execute("yes", 1)
    assert endless.timed_out and endless.dropped_bytes > 0


def test_standard_input_is_empty(workspace: Workspace) -> None:
    assert workspace.execute("cat; read x; echo $?", 60).output == b"1\n"


def test_an_empty_command_does_nothing(workspace: Workspace) -> None:
    found = workspace.execute("", 60)
    assert (found.output, found.returncode, found.timed_out) == (b"", 0, False)


def test_errors_read_the_same_in_every_kind(workspace: Workspace) -> None:
    assert (
        text(workspace, "echo a\nnot-a-program")
        == "a\n/run/task/command: line 2: not-a-program: command not found\n"
    )
    assert workspace.execute("if", 60).returncode == 2
    assert workspace.execute("printf '\\xff\\x00'", 60).output == b"\xff\x00"
    assert text(workspace, "echo $HOSTNAME $TERM $LANG $TZ; pwd") == "testbed dumb C.UTF-8 UTC\n/testbed\n"


FORKS = """
import os, time
for number in range(1000):
    try:
        pid = os.fork()
    except OSError:
        break
    time.sleep(0.005 if pid else 60)
print(number, flush=True)
"""


def test_resource_limits(kind: Kind, tmp_path: Path) -> None:
    limits = ResourceLimits(processes=40, memory_mb=512, file_mb=1, tmp_mb=1)
    with kind.open(tmp_path / "ws", limits) as workspace:
        assert workspace.execute("python -c 'bytearray(10**9)'", 60).returncode == 1
        assert workspace.execute("head -c 2000000 /dev/zero > f", 60).returncode != 0
        assert text(workspace, "wc -c < f") == "1048576\n"
        for place in ("/dev/shm",) if kind.name == "bwrap" else ("/tmp", "/dev/shm"):
            many = f"for i in 1 2 3; do head -c 900000 /dev/zero > {place}/$i || exit 9; done"
            assert workspace.execute(many, 60).returncode == 9, place
        forked = workspace.execute(f"python3 -c '{FORKS}'", 60)
        assert "processes" in (forked.stopped or "") or int(forked.output) < 40
        assert workspace.execute("ls", 60).returncode == 0
        bomb = workspace.execute("f() { f | f & }; f; sleep 1; echo over", 10)
        assert bomb.stopped is not None or bomb.returncode in (0, 254)
        assert text(workspace, "echo alive") == "alive\n"
    with kind.open(tmp_path / "ws2", ResourceLimits(min_free_mb=10**9)) as workspace:
        seen = workspace.execute("sleep 60", 60)
        assert not seen.timed_out and "MB free" in (seen.stopped or "")


def test_memory_of_all_processes_together_is_limited(daemon: Daemon, kind: Kind, tmp_path: Path) -> None:
    if kind.name == "bwrap":
        pytest.skip("bubblewrap bounds each process")
    hog = "python3 -c 'import time; x = b\"x\" * 80_000_000; time.sleep(20)' & "
    with kind.open(tmp_path / "ws", ResourceLimits(memory_mb=256)) as workspace:
        seen = workspace.execute(hog * 6 + "wait -n; echo $?", 60)
        assert b"137" in seen.output.splitlines() and not seen.timed_out, seen.output
        assert text(workspace, "echo alive") == "alive\n"


def test_a_command_may_lock_itself_out(workspace: Workspace) -> None:
    workspace.execute("chmod 000 /testbed /tmp", 60)
    assert workspace.execute("ls README && touch /tmp/x", 60).output == b"README\n"
    deep = "import os\nfor _ in range(1200):\n    os.mkdir('d'); os.chdir('d')"
    assert workspace.execute(f'python -c "{deep}"; mkdir a && chmod 000 a', 60).returncode == 0
    assert workspace.diff() == b""


def test_a_command_may_remove_what_it_stands_on(workspace: Workspace) -> None:
    workspace.execute(
        "rm -rf /testbed/* /run/* /tmp/*; mv /testbed /gone; ln -s / /testbed; mv /run /ran; echo x > /run",
        60,
    )
    seen = workspace.execute("pwd; ls", 60)
    assert seen.returncode in (0, 126) and not seen.timed_out
    diff = workspace.diff()
    assert diff.count(b"deleted file mode") == 7 and b"new file" not in diff


# -------------------------------------------------------------------------------------------------------------- diff

EDITS = """
python - <<'EOF'
import os, pathlib
pathlib.Path("src/widget/na\\u00efve mod.py").write_bytes(b"Z = 3\\r\\nY = 4\\n")
pathlib.Path("src/widget/latin.py").write_bytes(b"# -*- coding: latin-1 -*-\\nNAME = '\\xe9'\\n")
pathlib.Path(".coverage").write_bytes(bytes(64))
pathlib.Path(os.fsdecode(b"odd \\xff")).write_bytes(b"x")
pathlib.Path("two\\nlines").write_text("x")
EOF
sed -i 's|value >= low|value < low|' src/widget/core.py
chmod 755 README
git mv 2>/dev/null; mv tests/helpers.py tests/help_me.py
rm pytest.ini; mkdir pytest.ini; echo x > pytest.ini/inside
ln -s src/widget/core.py link; ln -s /etc/passwd out; ln -s ../../../etc up
mkfifo pipe; mkdir -p src/widget/__pycache__; echo x > src/widget/__pycache__/core.cpython-312.pyc
printf '*.py diff=shout filter=upper\\n' > .gitattributes; printf '*.py\\n' > .gitignore
mkdir -p .git/objects; echo x > .git/HEAD
chmod 000 src/widget/__init__.py
"""


def test_a_diff_is_the_same_in_every_kind_and_rebuilds_the_tree(
    kind: Kind, tmp_path: Path, local_image: LocalImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(
        "[diff]\n\tnoprefix = true\n\texternal = /bin/true\n[color]\n\tui = always\n[core]\n\tautocrlf = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    with kind.open(tmp_path / "ws") as workspace:
        done = workspace.execute(EDITS, 60)
        assert done.returncode == 0, done.output
        diff = workspace.diff()
        left_out = dict(workspace.left_out)
    assert left_out == {
        "byte code": 1, "git folder": 1, "bad path": 1, "link out of the tree": 2, "special file": 1,
    }  # fmt: skip
    with BwrapWorkspace(
        Bwrap.find(tiny_image.TESTBED_PYTHON), local_image, tiny_image.TASK, tmp_path / "bwrap"
    ) as other:
        other.execute(EDITS, 60)
        assert other.diff() == diff
    pristine = tmp_path / "pristine"
    local_image.checkout(tiny_image.TASK, pristine, pyc=False)
    assert apply_diff(Bwrap.find(), pristine, diff, tmp_path / "git").ok
    assert (pristine / "src/widget/naïve mod.py").read_bytes() == b"Z = 3\r\nY = 4\n"
    assert (pristine / ".coverage").read_bytes() == bytes(64) and (pristine / "link").is_symlink()
    assert (pristine / "README").stat().st_mode & 0o111 and (pristine / "pytest.ini/inside").is_file()
    assert not (pristine / "tests/helpers.py").exists() and not (pristine / "out").is_symlink()


def test_a_patch_that_is_too_large_is_refused(kind: Kind, tmp_path: Path) -> None:
    with kind.open(tmp_path / "ws", max_diff_bytes=1_000_000) as workspace:
        workspace.execute("head -c 5000000 /dev/urandom > 'uv lock'; echo x > small", 60)
        with pytest.raises(DiffRefusedError, match=r"'uv lock' \(5,000,000 bytes\)"):
            workspace.diff()
        workspace.execute("rm 'uv lock'", 60)
        assert b"small" in workspace.diff()


CASE_12 = json.loads((Path(__file__).parent / "data/exec_timeout.json").read_text())


def test_turns_after_a_time_out(workspace: Workspace) -> None:
    """The commands of the cases: what the client does not kill lives on, and exit statuses are no proof."""
    for turn in CASE_12["turns"]:
        expected = turn["expected"]
        started_s = time.monotonic()
        seen = workspace.execute(turn["cmd"], CASE_12["timeout_s"])
        wall_s = time.monotonic() - started_s
        assert seen.timed_out is expected.get("timed_out", False), turn
        assert wall_s < expected.get("returns_within_s", 12), turn
        assert seen.returncode == expected.get("returncode", seen.returncode), turn
        assert expected.get("output_contains", "") in seen.output.decode(), turn
        if "output" in expected:
            assert seen.output.decode().strip() == expected["output"], turn
    assert text(workspace, "ps -eo args | grep -cE '[s]leep (300|400)|[w]hile True'").strip() == "0"


# ------------------------------------------------------------------------------------------------------ validation


def test_a_bug_is_taken_back_by_a_command_and_only_once(workspace: Workspace) -> None:
    """How tasks are validated: the gold patch is what this leaves."""
    path, fixed = "src/widget/core.py", tiny_image.CORE
    buggy = fixed.replace(tiny_image.FIXED_LINE, tiny_image.BUGGY_LINE)
    lines = difflib.unified_diff(fixed.splitlines(True), buggy.splitlines(True), f"a/{path}", f"b/{path}")
    script = reverse_command(f"diff --git a/{path} b/{path}\n{''.join(lines)}".encode())
    done = workspace.execute(script, 60)
    assert done.returncode == 0, done.output
    assert f"-{tiny_image.BUGGY_LINE}\n+{tiny_image.FIXED_LINE}\n".encode() in workspace.diff()
    assert workspace.execute(script, 60).returncode == 1
    assert workspace.execute(f"PATH=/nonexistent\n{script}", 60).returncode == 3
