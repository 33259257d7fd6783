"""What a command in bubblewrap sees of the machine and of other commands, in real sandboxes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_image

from lightning_smith.repositories.local import LocalImage
from lightning_smith.repositories.tree_files import EXECUTABLE, TreeFile
from lightning_smith.sandbox import bwrap as bwrap_module
from lightning_smith.sandbox.bwrap import Bwrap, Completed, Limit, ResourceLimits, SandboxError
from lightning_smith.sandbox.scratch import Scratch
from lightning_smith.sandbox.trees import TestTree, open_test_tree

pytestmark = [pytest.mark.e2e, tiny_image.NEEDS_TESTBED]


@pytest.fixture(scope="module")
def sandbox() -> Bwrap:
    return Bwrap.find(tiny_image.TESTBED_PYTHON)


@pytest.fixture
def tree() -> Iterator[Path]:
    with Scratch() as folder:
        (folder / "tree").mkdir()
        yield folder / "tree"


def run(sandbox: Bwrap, tree: Path, command: str, *, copy: bool = False) -> str:
    """What a command prints, which has to succeed."""
    done = sandbox.run(command, tree=tree, environment={}, timeout_s=60, copy=copy)
    assert done.returncode == 0, done.output.decode()
    return os.fsdecode(done.output)


# ---------------------------------------------------------------------------------------------------- the machine


def test_no_packages_but_the_testbeds(sandbox: Bwrap, tree: Path) -> None:
    """Neither the system's nor those beside the interpreter, both of which this machine may have."""
    metadata = "find / -path /proc -prune -o \\( -name '*.dist-info' -o -name '*.egg-info' \\) -print"
    found = run(sandbox, tree, metadata).split()
    assert found and all(path.startswith("/opt/testbed/") for path in found), found
    names = "find / -path /proc -prune -o \\( -name site-packages -o -name dist-packages \\) -print"
    folders = set(run(sandbox, tree, names).split())
    own = {folder for folder in folders if folder.startswith("/opt/testbed/")}
    assert own and run(sandbox, tree, f"find {' '.join(folders - own) or '/tmp'} -mindepth 1") == ""
    wheels = "find / -path /proc -prune -o \\( -name '*.whl' -o -name '*.egg' \\) -size +0 -print"
    assert run(sandbox, tree, wheels) == ""
    base = tiny_image.TESTBED_PYTHON.resolve()
    assert run(sandbox, tree, f"{base} -c 'import sys; print(sys.version)'")
    for name in ("doc", "python-wheels"):
        assert sandbox.run(f"ls /usr/share/{name}", tree=tree, environment={}, timeout_s=60).returncode == 2
    assert (
        run(sandbox, tree, "ls -d /usr/src /usr/local/bin /usr/lib/python3/dist-packages 2>/dev/null || true")
        == ""
    )


def test_programs_and_the_standard_library_are_there(sandbox: Bwrap, tree: Path) -> None:
    run(
        sandbox, tree, "git init -q . && git --version && echo a > a && cp a b && diff a b && sed -i s/a/b/ a"
    )
    assert (
        run(sandbox, tree, "awk 'BEGIN { print 3 }' | grep -c 3; find . -name a; perl -e 'print 4'")
        == "1\n./a\n4"
    )
    # Each extension module that the interpreter has loads with what it links to.
    modules = (
        "import importlib, sysconfig, pathlib\n"
        "for path in pathlib.Path(sysconfig.get_config_var('DESTSHARED')).glob('*.so'):\n"
        "    name = path.name.split('.')[0]\n"
        "    name.startswith(('_test', '_xx', 'xx')) or importlib.import_module(name)\n"
        "import os, zoneinfo\n"
        "print(zoneinfo.ZoneInfo('Europe/Berlin'), os.cpu_count())"
    )
    shown = run(sandbox, tree, f'python -c "{modules}"')
    assert shown == f"Europe/Berlin {os.cpu_count()}\n"


def test_counters_of_the_machine_are_not_shown(sandbox: Bwrap, tree: Path) -> None:
    names = ("vmstat", "zoneinfo", "buddyinfo", "interrupts", "softirqs", "diskstats", "slabinfo")
    there = [f"/proc/{name}" for name in names if Path("/proc", name).exists()]
    assert run(sandbox, tree, f"cat {' '.join(there)}; ls -A /proc/pressure /proc/sys/fs 2>/dev/null") in (
        "/proc/pressure:\n\n/proc/sys/fs:\n",
        "/proc/sys/fs:\n",
    )
    counts = run(sandbox, tree, "grep -v btime /proc/stat")
    assert set(re.findall(r" (\d+)", counts)) == {"0"} and "cpu0 0" in counts
    assert "MemTotal" in run(sandbox, tree, "cat /proc/meminfo")


DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
MOMENT = 1_234_567_890
CHANGES = f"""
for device in {" ".join(DEVICES)}; do
    touch /dev/$device && echo CHANGED; touch -d @{MOMENT} /dev/$device && echo CHANGED
    chmod 666 /dev/$device && echo CHANGED
done
touch -d @{MOMENT} /proc/self/fd/0 && echo CHANGED
python -c 'import os; os.utime(0, ({MOMENT}, {MOMENT})); print("CHANGED")'
touch /proc/vmstat && echo CHANGED
echo gone > /dev/null && head -c 3 /dev/zero | wc -c && head -c 4 /dev/urandom | wc -c && cat
"""


def test_the_machines_devices_can_be_used_and_not_changed(sandbox: Bwrap, tree: Path) -> None:
    """Others than root can only say for when they were changed last: it is forgotten before the next command."""

    def times() -> list[float]:
        return [Path("/dev", name).stat().st_mtime for name in DEVICES]

    shown = run(sandbox, tree, f"({CHANGES}) 2>/dev/null").split()
    assert shown[-2:] == ["3", "4"] and (os.geteuid() != 0 or "CHANGED" not in shown)
    run(sandbox, tree, "true")
    assert MOMENT not in times()


PAGES = """
import ctypes, errno, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
file = os.open(os.__file__, os.O_RDONLY)
size = os.fstat(file).st_size
memory = mmap.mmap(file, size, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)
memory.madvise(mmap.MADV_DONTNEED)
for call in (
    lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED),
    lambda: memory.madvise(21),
    lambda: os.preadv(file, [bytearray(9)], 0, os.RWF_NOWAIT),
):
    try:
        print(call())
    except OSError as error:
        print(errno.errorcode[error.errno])
print(os.preadv(file, [bytearray(9)], 0))
"""


def test_pages_in_memory_cannot_be_asked_for(sandbox: Bwrap, tree: Path) -> None:
    """Nor be taken out of it; programs read as ever."""
    shown = run(sandbox, tree, f"python - <<'END'\n{PAGES}\nEND")
    assert shown.split() == ["ENOSYS", "EINVAL", "ENOTSUP", "9"]
    assert run(sandbox, tree, "cat /usr/bin/env | sort -z | wc -c").strip().isdigit()


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, sandbox: Bwrap) -> None:
    monkeypatch.setattr(bwrap_module, "_PROGRAMS", ("sed", "no-such-program"))
    with pytest.raises(
        SandboxError, match=r"lacks .*no-such-program: command not found.*\): sed, no-such-program must be"
    ):
        sandbox.check()


# ----------------------------------------------------------------------------------------------- copies of a tree


def test_a_copy_is_what_the_tree_is(sandbox: Bwrap, tree: Path) -> None:
    (tree / "folder").mkdir(mode=0o555)
    (tree / "a \n'ü").write_text("text")
    for name in (b"\xff", b"\xff" * 200, "ü".encode() * 100):
        (tree / os.fsdecode(name)).touch()
    (tree / "run").write_text("#!/bin/sh\necho ran\n")
    (tree / "run").chmod(0o755)
    os.utime(tree / "run", ns=(1, 1_234_567_890_123_456_789))
    (tree / "same").hardlink_to(tree / "run")
    (tree / "out").symlink_to("/nowhere")
    os.utime(tree / "out", ns=(1, 987_654_321), follow_symlinks=False)
    os.utime(tree, ns=(1, 5_000_000_001))
    listing = "find . \\( -type d -printf '%P %M %T@\\n' -o -printf '%P %M %T@ %n %s %l\\n' \\) | LC_ALL=C sort; ./run"
    assert run(sandbox, tree, listing, copy=True) == run(sandbox, tree, listing)
    assert "run -rwxr-xr-x 1234567890.1234567890 2 19" in run(sandbox, tree, listing, copy=True)


def test_a_copy_is_gone_afterwards(sandbox: Bwrap, tree: Path) -> None:
    (tree / "old").write_text("old")
    run(sandbox, tree, "rm old; echo new > new", copy=True)
    assert [path.name for path in tree.iterdir()] == ["old"]


def test_nothing_of_the_copying_is_left_to_the_command(sandbox: Bwrap, tree: Path) -> None:
    open_files = "for file in /proc/self/fd/* /proc/$PPID/fd/*; do readlink $file; done"
    assert run(sandbox, tree, open_files, copy=True).count("memfd") == 0
    assert str(tree) not in run(
        sandbox, tree, "cat /proc/self/mountinfo; tr '\\0' ' ' < /proc/1/cmdline", copy=True
    )


NUMBERS = """
find . -printf '%P %i\\n' | LC_ALL=C sort
for place in /testbed /tmp /dev/shm; do touch $place/probe; mkdir $place/folder; stat -c '%n %i' $place/*; done
"""
PLACES = "find / -path /proc -prune -o -type d -writable -print | sort"


def test_a_run_leaves_no_trace_in_the_numbers_of_files(sandbox: Bwrap, tree: Path) -> None:
    for number in range(20):
        (tree / f"{number}.py").write_text("")
    assert run(sandbox, tree, PLACES, copy=True) == "/dev/pts\n/dev/shm\n/testbed\n/tmp\n"
    before = run(sandbox, tree, NUMBERS, copy=True)
    many = "for place in /testbed /tmp /dev/shm; do (cd $place; seq -f many%g 1000 | xargs touch); done"
    run(sandbox, tree, many, copy=True)
    assert run(sandbox, tree, NUMBERS, copy=True) == before


def test_a_copy_has_limits_of_its_own(sandbox: Bwrap, tree: Path) -> None:
    def bounded(command: str, limits: ResourceLimits) -> Completed:
        limited = replace(sandbox, limits=limits)
        return limited.run(command, tree=tree, environment={}, timeout_s=60, copy=True)

    (tree / "held").write_bytes(bytes(3 * 2**20))
    # The disk of the tree itself is no business of a copy's.
    full = bounded(
        "head -c 2M /dev/zero > more && ! head -c 30M /dev/zero > most",
        ResourceLimits(copy_mb=4, min_free_mb=10**9),
    )
    assert (full.returncode, full.limit) == (0, None) and b"No space left" in full.output
    files = "seq 5000 | xargs touch; sleep 60"
    done = bounded(files, ResourceLimits(copy_files=1000))
    assert (done.limit, done.returncode, done.stopped) == (Limit.COPY, None, "had more than 1000 files")
    assert bounded("seq 500 | xargs touch; sleep 0.5", ResourceLimits(copy_files=1000)).returncode == 0


def test_many_small_files_fit(sandbox: Bwrap, tree: Path) -> None:
    for number in range(2000):
        (tree / f"{number}").write_text("x")
    limited = replace(sandbox, limits=ResourceLimits(copy_mb=0))
    assert run(limited, tree, "ls | wc -l", copy=True) == "2000\n"


def test_a_tree_that_cannot_be_copied_is_no_verdict(
    sandbox: Bwrap, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxError, match=r"tar cannot read .*gone"):
        sandbox.run("true", tree=tree / "gone", environment={}, timeout_s=60, copy=True)
    (tree / "large").write_bytes(bytes(2 * 2**20))
    monkeypatch.setattr(bwrap_module, "_COPY_FACTOR", 0)
    limited = replace(sandbox, limits=ResourceLimits(copy_mb=1))
    with pytest.raises(SandboxError, match=r"the tree was not copied into the sandbox \(tar: .*\)"):
        limited.run("true", tree=tree, environment={}, timeout_s=60, copy=True)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> LocalImage:
    return LocalImage.open(tiny_image.build(tmp_path_factory.mktemp("images")))


def test_a_test_tree_is_copied_once_a_patch_was_applied(sandbox: Bwrap, image: LocalImage) -> None:
    def test(tree: TestTree, command: str) -> tuple[int | None, str]:
        done = tree.run(command, environment={}, timeout_s=60, cpu_s=60, keep_bytes=1000)
        return done.returncode, done.output.decode()

    with open_test_tree(sandbox, image, tiny_image.TASK, None) as tree:
        assert test(tree, "echo prepared > mark")[0] == 0 and "mark" in tree.stamps()
        assert tree.apply(b"", lambda path: False).ok
        tree.write("tool", TreeFile(EXECUTABLE, b"#!/bin/sh\ncat mark\n"))
        assert test(tree, "./tool; rm mark; python -c 'import widget; print(widget.__file__)'") == (
            0,
            "prepared\n/testbed/src/widget/__init__.py\n",
        )
        assert "mark" in tree.stamps()
