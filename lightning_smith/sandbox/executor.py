"""The first process of a task's container: runs commands for the harness, and nothing of them outlives their turn.

    python -I -S executor.py [USER]                  # speaks on standard input and output
    python -I -S executor.py --listen PATH [USER]    # speaks over the one connection that it accepts at a Unix socket

One file that needs Python 3.8 and its standard library only, since it runs with what an image has. The harness sends
requests and gets one answer for each (`Frames`); the end of its input is the executor's end, and the container's.

The socket is made by the executor's own user in a folder that nobody else may enter, and is gone before the first
command: commands find neither an address to connect to nor a place for one of their own. The harness runs as that user
in a container of its own, or as root with CAP_DAC_OVERRIDE, and can tell by the peer's user that the executor answers.

Commands run as the image's user, mostly root, without any capability. They cannot reach the executor:

- it is the first process of its namespace, so no signal from inside that it does not handle reaches it;
- it has a user of its own, whom it only leaves to touch files (setfsuid), and capabilities that they lack; so the
  kernel refuses ptrace, /proc/1/{mem,fd,environ}, prlimit, priorities, affinity and /proc/1/oom_score_adj;
- everything it needs is imported before the first command, and on an overlay file system an edited library is another
  file than the one that it has mapped;
- it ends without a traceback and without Python's clean-up, both of which may import.

Started by hand, not as a first process, it does the same for its own descendants (a subreaper): that is for tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import math
import os
import pwd
import resource
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import time

SCRIPT = "/run/task/command"
"""Where a command's script lies while it runs, so that bash's messages read the same in every kind of workspace."""

_HEADER = struct.Struct("!II")
_TICK_S = 0.1
_KILL_GRACE_S = 10.0
_CPU_GRACE_S = 5
_READ_BYTES = 65536
MAX_SOCKET_PATH_BYTES = 107
MAX_CHANGED_NAMES_BYTES = 64 << 20
"""What the names of changed files may take: a container has no memory for what a command can make of them."""

OWN_USER = 64999
"""Whom the executor runs as where it is the first process of a container that starts as root."""

_VOLUMES = ("/tmp", "/dev/shm", "/dev/mqueue", os.path.dirname(SCRIPT))
"""What outlives a container that is started anew in its pod: one test run must not leave word to the next."""

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS = (
    4,
    8,
    24,
    36,
    38,
)
_KEPT = 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8  # CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SETPCAP
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_CAP_VERSION_3 = 0x20080522
_CAPABILITIES = 64
_IPC_RMID = 0

_libc = ctypes.CDLL(None, use_errno=True)


class HeadAndTail:
    """A stream of any length in bounded memory: its first and its last `keep_bytes` bytes."""

    def __init__(self, keep_bytes: int) -> None:
        self._keep = keep_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._total += len(data)
        room = self._keep - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._keep:
            del self._tail[: -self._keep]

    @property
    def dropped_bytes(self) -> int:
        """How many bytes between head and tail are lost."""
        return max(0, self._total - 2 * self._keep)

    def data(self) -> bytes:
        """Head and tail; if bytes were dropped, the gap is in the middle."""
        return bytes(self._head + self._tail[-self._keep :])


class Frames:
    """Messages over two descriptors: lengths of both parts (4 bytes each, big endian), JSON, bytes."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self._writing = reading, writing

    def receive(self):
        """The next message and its bytes; None at the end of the stream."""
        header = self._read(_HEADER.size)
        if header is None:
            return None
        text_bytes, data_bytes = _HEADER.unpack(header)
        text, data = self._read(text_bytes), self._read(data_bytes)
        if text is None or data is None:
            return None
        return json.loads(text.decode("ascii")), data

    def send(self, message, data: bytes = b"") -> None:
        view = memoryview(encode_frame(message, data))
        while view:
            view = view[os.write(self._writing, view) :]

    def _read(self, wanted: int):
        found = bytearray()
        while len(found) < wanted:
            data = os.read(self.reading, min(wanted - len(found), 1 << 20))
            if not data:
                return None
            found += data
        return bytes(found)


def encode_frame(message, data: bytes = b"") -> bytes:
    """One message; text in it may hold surrogates for bytes that are no UTF-8."""
    text = json.dumps(message).encode("ascii")
    return _HEADER.pack(len(text), len(data)) + text + data


class RequestError(Exception):
    """A request that cannot be met; the text goes back to the harness."""


class HarnessGoneError(Exception):
    """Nobody waits for an answer any more."""


class Executor:
    """Answers requests: `filter`, `run`, `write`, `remove`, `stamps`, `inspect`, `remember`, `changes`, `read`."""

    def __init__(self, user: str = "") -> None:
        self._uid, self._gid, self._home = _account(user)
        self._root = os.getuid() == 0
        self._first = os.getpid() == 1
        self._wake, wake = os.pipe()
        for number in (self._wake, wake):
            os.set_blocking(number, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._before = {}
        self._filter = b""
        self._become_own_user()

    def _become_own_user(self) -> None:
        """Put this process out of the reach of the commands; see the module's docstring."""
        if not self._first:
            _prctl(_PR_SET_SUBREAPER, 1)
        if self._root and self._first:
            _prctl(_PR_SET_KEEPCAPS, 1)
            os.setgroups([])
            os.setresgid(OWN_USER, OWN_USER, OWN_USER)
            os.setresuid(OWN_USER, OWN_USER, OWN_USER)
            _set_capabilities(_KEPT)

    def _touch_files_as_commands_do(self) -> None:
        if self._root and self._first:
            _libc.setfsgid(self._gid)
            _libc.setfsuid(self._uid)
            # A process that is not dumpable has its files in /proc owned by root.
            _prctl(_PR_SET_DUMPABLE, 1)

    def listen(self, path: str) -> Frames:
        """Wait for the harness; RequestError where commands could come between it and this process."""
        if self._first and not self._root:
            raise RequestError(
                "the container must start as root with CAP_KILL, CAP_SETGID, CAP_SETPCAP and CAP_SETUID"
            )
        return accept_one(path)

    def serve(self, frames: Frames, volumes=()) -> None:
        """Empty `volumes`, then answer until the harness has no more requests."""
        self._frames = frames
        self._touch_files_as_commands_do()
        if volumes and self._first:
            try:
                _empty(volumes)
                self._remove_shared_memory()
            except OSError as error:
                frames.send({"error": f"what a run before has left cannot be removed: {error}"})
                return
        frames.send(
            {
                "ready": True,
                "pid": os.getpid(),
                "home": self._home,
                "user": self._uid,
                "bash": shutil.which("bash"),
                "machine": os.uname().machine,
                "environment": dict(os.environ),
            }
        )
        while True:
            received = frames.receive()
            if received is None:
                return
            request, data = received
            try:
                answer, payload = getattr(self, "on_" + request["op"])(request, data)
            except HarnessGoneError:
                raise
            except Exception as error:  # to print a traceback, Python would import from the image
                answer, payload = {"error": f"{type(error).__name__}: {error}"}, b""
            frames.send(answer, payload)

    def _remove_shared_memory(self) -> None:
        """Remove what System V calls made: it lives in the pod's namespace, and only its owner may end it."""
        child = os.fork()
        if child == 0:
            try:
                self._drop()
                for kind, control in (("shm", _libc.shmctl), ("msg", _libc.msgctl)):
                    for number in _shared(kind):
                        control(number, _IPC_RMID, None)
                for number in _shared("sem"):
                    _libc.semctl(number, 0, _IPC_RMID)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1] != 0:
            raise OSError("its shared memory does not go")

    # ------------------------------------------------------------------------------------------------------ files

    def on_write(self, request, data: bytes):
        """Write `files` ([path, mode as git has it, size], relative to `root`) over whatever is there."""
        at = 0
        for path, mode, size in request["files"]:
            content, at = data[at : at + size], at + size
            full = _real_parents(request["root"], path)
            _remove(full)
            if stat.S_ISLNK(mode):
                os.symlink(content, full)
                continue
            number = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                _write_all(number, content)
                os.fchmod(number, stat.S_IMODE(mode))
            finally:
                os.close(number)
        return {}, b""

    def on_remove(self, request, data: bytes):
        """Remove `paths` below `root`, and the folders above them that are left empty if `prune` says so."""
        for path in request["paths"]:
            full = _join(request["root"], path)
            _remove(full)
            folder = os.path.dirname(full)
            while request.get("prune") and folder != os.fsencode(request["root"]):
                try:
                    os.rmdir(folder)
                except OSError:
                    break
                folder = os.path.dirname(folder)
        return {}, b""

    def on_remember(self, request, data: bytes):
        """Note the stamp of every file below `root`, for `changes`."""
        self._before = dict(_scan(request["root"]))
        return {"files": len(self._before)}, b""

    def on_stamps(self, request, data: bytes):
        """Path and stamp of every file below `root` as it is now."""
        return {"stamps": [(_text(path), stamp) for path, stamp in _scan(request["root"])]}, b""

    def on_inspect(self, request, data: bytes):
        """What is below `root` before anything changed it.

        `files`: path, mode, hash as git makes it, and a link's target, of files and links outside of .git. `others`:
        what belongs to somebody else than the commands, as [path, uid, whether it is a folder].
        """
        top = os.fsencode(request["root"])
        files, others, folders = [], [], [b""]
        if os.lstat(top).st_uid != self._uid:
            others.append(["", os.lstat(top).st_uid, True])
        while folders:
            folder = folders.pop()
            try:
                found = _entries(os.path.join(top, folder))
            except PermissionError:
                continue  # it is somebody else's
            for name, about in found:
                path = os.path.join(folder, name)
                is_folder = stat.S_ISDIR(about.st_mode)
                if about.st_uid != self._uid:
                    others.append([_text(path), about.st_uid, is_folder])
                if is_folder:
                    folders.append(path)
                elif not path.startswith(b".git/") and about.st_uid == self._uid:
                    files += _described(top, path, about.st_mode)
        return {"files": files, "others": others}, b""

    def on_changes(self, request, data: bytes):
        """Files that are new or differ from what was remembered, with stamps and targets of links, and those gone.

        Answers `too_many` alone if their names take more than `MAX_CHANGED_NAMES_BYTES`.
        """
        self._make_room("/", 0o755)
        changed, gone, names_bytes = [], set(self._before), 0
        for path, stamp in _scan(request["root"]):
            gone.discard(path)
            before = self._before.get(path)
            if before != stamp:
                names_bytes += len(path)
                if names_bytes > MAX_CHANGED_NAMES_BYTES:
                    return {"too_many": True}, b""
                target = ""
                if stat.S_ISLNK(stamp[0]):
                    target = _text(os.readlink(os.path.join(os.fsencode(request["root"]), path)))
                changed.append([_text(path), stamp, target, before[0] if before else None])
        return {"changed": changed, "gone": [_text(path) for path in self._before if path in gone]}, b""

    def on_read(self, request, data: bytes):
        """Contents of regular files below `root`, one after the other; at most `max_bytes` in all."""
        contents, left = [], request["max_bytes"]
        for path in request["paths"]:
            full = _join(request["root"], path)
            number = _open_regular(full)
            try:
                chunks = []
                while True:
                    chunk = os.read(number, 1 << 20)
                    if not chunk:
                        break
                    left -= len(chunk)
                    if left < 0:
                        raise RequestError(f"{path} makes more than the bytes asked for")
                    chunks.append(chunk)
                contents.append(b"".join(chunks))
            finally:
                os.close(number)
        return {"sizes": [len(content) for content in contents]}, b"".join(contents)

    # --------------------------------------------------------------------------------------------------- commands

    def on_filter(self, request, program: bytes):
        """The filter of system calls under which commands run from now on."""
        self._filter = program
        return {}, b""

    def on_run(self, request, script: bytes):
        """Run a bash script in `cwd` and end whatever it started.

        Answers `returncode` (128 + signal), `limit` (`time` or `disk` if it was ended for that, else None),
        `dropped_bytes` of the output, `wall_s`.
        """
        started_s = time.monotonic()
        for folder, mode in (("/", 0o755), (request["cwd"], 0o755), ("/tmp", 0o1777)):
            self._make_room(folder, mode)
        problem = self._write_script(script)
        if problem:
            return _answer(126, None, 0, started_s), problem
        output = HeadAndTail(request["keep_bytes"])
        reading, writing = os.pipe()
        try:
            os.set_blocking(reading, False)
            child = os.fork()
            if child == 0:
                self._become_command(request, writing)
            os.close(writing)
            status, limit = self._watch(child, reading, output, request, started_s)
            self.end_all()
            _read_rest(reading, output)
        finally:
            os.close(reading)
        returncode = None
        if limit is None:
            returncode = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return _answer(returncode, limit, output.dropped_bytes, started_s), output.data()

    def _make_room(self, folder: str, mode: int) -> None:
        """Make sure that `folder` is one that can be entered: the command before may have removed or closed it."""
        try:
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                os.unlink(folder)
                os.mkdir(folder)
            elif os.lstat(folder).st_mode & 0o700 == 0o700:
                return
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
        os.chmod(folder, mode)

    def _write_script(self, script: bytes) -> bytes:
        """Put the script where bash reads it; what keeps it from that, if commands before have seen to it."""
        try:
            os.makedirs(os.path.dirname(SCRIPT), exist_ok=True)
            _remove(os.fsencode(SCRIPT))
            number = os.open(SCRIPT, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            try:
                _write_all(number, script)
            finally:
                os.close(number)
        except OSError as error:
            return f"bash: {SCRIPT}: {os.strerror(error.errno or 0)}\n".encode()
        return b""

    def _become_command(self, request, writing: int) -> None:
        """Turn this forked process into the command; never returns."""
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            null = os.open("/dev/null", os.O_RDONLY)
            for number, target in ((null, 0), (writing, 1), (writing, 2)):
                os.dup2(number, target)
            self._limit(request)
            self._drop()
            os.chdir(request["cwd"])
            os.execve(request["bash"], ["bash", SCRIPT], request["environment"])
        except BaseException as error:
            os.write(1, f"bash: {error}\n".encode("utf-8", "replace"))
        finally:
            os._exit(127)

    def _limit(self, request) -> None:
        limits = request["limits"]
        cpu_s = request.get("cpu_s")
        if cpu_s is not None:
            seconds = math.ceil(cpu_s)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + _CPU_GRACE_S))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for kind, size_mb in ((resource.RLIMIT_AS, "memory_mb"), (resource.RLIMIT_FSIZE, "file_mb")):
            resource.setrlimit(kind, (limits[size_mb] << 20, limits[size_mb] << 20))

    def _drop(self) -> None:
        """Become the image's user, without capabilities and without a way to any."""
        if self._root and self._first:
            for number in range(_CAPABILITIES):
                if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                    if ctypes.get_errno() != errno.EINVAL:  # beyond the last one that this kernel has
                        raise OSError("a capability cannot be given up")
                    break
            os.setresgid(self._gid, self._gid, self._gid)
            os.setresuid(self._uid, self._uid, self._uid)
            _set_capabilities(0)
            _prctl(_PR_SET_DUMPABLE, 1)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # when memory runs out, a command goes before the executor
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if self._filter:
            _set_filter(self._filter)

    def _watch(self, child: int, reading: int, output: HeadAndTail, request, started_s: float):
        """Read until the command has ended or passes a limit; returns its wait status and the limit."""
        deadline_s = started_s + request["limit_s"]
        poll = select.poll()
        poll.register(reading, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        poll.register(self._frames.reading, 0)
        looked_s = started_s
        while True:
            status = self._reap(child)
            if status is not None:
                return status, None
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return 0, "time"
            if now_s - looked_s >= _TICK_S:
                looked_s = now_s
                lacking = _lacking(request["cwd"], request["limits"])
                if lacking:
                    return 0, lacking
            for number, _ in poll.poll(1000 * min(_TICK_S, max(0.0, deadline_s - now_s)) + 1):
                if number == self._frames.reading:
                    raise HarnessGoneError
                data = _read_some(number)
                if number == reading:
                    if data:
                        output.add(data)
                    elif data is not None:
                        poll.unregister(reading)

    def _reap(self, child: int):
        """Collect what has ended; the wait status of `child` if that has."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == child:
                found = status

    def end_all(self) -> None:
        """Kill everything that commands started and see that it is gone: whatever detached is a child of this one."""
        deadline_s = time.monotonic() + _KILL_GRACE_S
        pause_s = 0.0005
        while True:
            self._kill_all()
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            if time.monotonic() > deadline_s:
                raise RequestError("a process of a command survives SIGKILL")
            time.sleep(pause_s)
            pause_s = min(0.02, 2 * pause_s)

    def _kill_all(self) -> None:
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _answer(returncode, limit, dropped_bytes: int, started_s: float):
    return {
        "returncode": returncode,
        "limit": limit,
        "dropped_bytes": dropped_bytes,
        "wall_s": time.monotonic() - started_s,
    }


def _account(user: str):
    """Uid, gid and home of the user that an image names (`name`, `uid`, `uid:gid`, or nothing: root)."""
    name, _, group = user.partition(":")
    if os.getuid() != 0:
        return os.getuid(), os.getgid(), os.environ.get("HOME", "/")
    try:
        found = pwd.getpwuid(int(name or 0)) if (name or "0").isdigit() else pwd.getpwnam(name)
        uid, gid, home = found.pw_uid, found.pw_gid, found.pw_dir
    except KeyError:
        if not (name or "0").isdigit():
            raise RequestError(f"the image names a user {name} that it does not have") from None
        uid, gid, home = int(name or 0), 0, "/" if name else "/root"
    return uid, int(group) if group.isdigit() else gid, home


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _set_capabilities(mask: int) -> None:
    """Permitted and effective ones; none is inherited."""
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _set_filter(program: bytes) -> None:
    """Refuse system calls from now on: `program` is a classic BPF one, 8 bytes an instruction."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _join(root: str, path: str) -> bytes:
    parts = path.encode("utf-8", "surrogateescape").split(b"/")
    if not path or path.startswith("/") or b".." in parts:
        raise RequestError(f"{path!r} is no path below {root}")
    return os.path.join(os.fsencode(root), *parts)


def _real_parents(root: str, path: str) -> bytes:
    """The full path, whose folders below `root` are made real ones: nothing is written through a link."""
    full = _join(root, path)
    folder = os.fsencode(root)
    os.makedirs(folder, exist_ok=True)
    for part in path.encode("utf-8", "surrogateescape").split(b"/")[:-1]:
        folder = os.path.join(folder, part)
        try:
            if stat.S_ISDIR(os.lstat(folder).st_mode):
                continue
            os.unlink(folder)
        except FileNotFoundError:
            pass
        os.mkdir(folder, 0o755)
    return full


def _remove(full: bytes) -> None:
    """Remove a file, or a folder with all in it, whatever its permissions."""
    try:
        if not stat.S_ISDIR(os.lstat(full).st_mode):
            os.unlink(full)
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    folders = [full]
    emptied = []
    while folders:
        folder = folders.pop()
        emptied.append(folder)
        os.chmod(folder, 0o700)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    os.unlink(entry.path)
    for folder in reversed(emptied):
        os.rmdir(folder)


def _scan(root: str):
    """Path and stamp (mode, size, inode, mtime, ctime in ns) of every entry that is no folder, links not followed."""
    top = os.fsencode(root)
    folders = [b""]
    while folders:
        folder = folders.pop()
        full = os.path.join(top, folder)
        try:
            try:
                found = _entries(full)
            except PermissionError:
                os.chmod(full, 0o755)
                found = _entries(full)
        except OSError:  # a path beyond the kernel's limit
            continue
        for name, about in found:
            path = os.path.join(folder, name)
            if stat.S_ISDIR(about.st_mode):
                folders.append(path)
            else:
                yield path, (about.st_mode, about.st_size, about.st_ino, about.st_mtime_ns, about.st_ctime_ns)


def _entries(folder: bytes):
    with os.scandir(folder) as entries:
        return [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]


def _described(top: bytes, path: bytes, mode: int):
    """Path, mode, git's hash and target of a link, in a list of one; an empty list for special files."""
    full = os.path.join(top, path)
    if stat.S_ISLNK(mode):
        target = os.readlink(full)
        blob = hashlib.sha1(b"blob %d\0" % len(target) + target)
        return [[_text(path), mode, blob.hexdigest(), _text(target)]]
    if not stat.S_ISREG(mode):
        return []
    number = _open_regular(full)
    try:
        blob = hashlib.sha1(b"blob %d\0" % os.fstat(number).st_size)
        for data in iter(lambda: os.read(number, 1 << 20), b""):
            blob.update(data)
    finally:
        os.close(number)
    return [[_text(path), mode, blob.hexdigest(), ""]]


def _open_regular(full: bytes) -> int:
    try:
        number = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except PermissionError:
        os.chmod(full, 0o600 | stat.S_IMODE(os.lstat(full).st_mode))
        number = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise RequestError(f"{full!r} is no regular file")
    return number


def _write_all(number: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]


def _read_some(number: int):
    """The next bytes; empty at the end of the stream, None if there are none yet."""
    try:
        return os.read(number, _READ_BYTES)
    except BlockingIOError:
        return None


def _read_rest(number: int, output: HeadAndTail) -> None:
    while True:
        data = _read_some(number)
        if not data:
            return
        output.add(data)


def _lacking(folder: str, limits):
    """Which limit the file system of a folder has passed, if any."""
    try:
        space = os.statvfs(folder)
    except OSError:  # the command has removed it
        space = os.statvfs("/")
    if space.f_bavail * space.f_frsize < limits["min_free_mb"] << 20:
        return "disk"
    # File systems without a fixed number of files say that they have none.
    return "files" if space.f_files > 0 and space.f_favail < limits["min_free_files"] else None


def _descendants(pid: int):
    """Pids of all processes below one, from /proc."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
    found = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def accept_one(path: str) -> Frames:
    """Wait at a Unix socket for the harness: the first connection is served and no other, and the socket is removed."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise RequestError(f"{path} is too long for a socket: the kernel takes {MAX_SOCKET_PATH_BYTES} bytes")
    folder, user = os.path.dirname(path), os.geteuid()
    about = os.stat(folder)
    if about.st_uid != user or about.st_mode & 0o077:
        raise RequestError(
            f"{folder} must belong to user {user} alone (chown {user}, chmod 700): "
            "commands could put a socket of their own there"
        )
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of an executor that was killed while it waited
    # Nothing runs yet that could send it, and a first process without a handler would let its pod wait in vain.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with socket.socket(socket.AF_UNIX) as listener:
        mask = os.umask(0o177)
        listener.bind(path)
        os.umask(mask)
        listener.listen(0)
        connection = listener.accept()[0]
        os.unlink(path)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    number = connection.detach()
    return Frames(number, number)


def _empty(folders) -> None:
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(folder):
                _remove(os.fsencode(os.path.join(folder, name)))


def _shared(kind: str):
    """Numbers of the namespace's System V objects of a kind; none where the kernel has no such."""
    try:
        with open(f"/proc/sysvipc/{kind}") as file:
            return [int(line.split()[1]) for line in file.readlines()[1:]]
    except FileNotFoundError:
        return []


def main() -> int:
    """Serve on standard input and output, or where `--listen` says; the last argument is the image's user."""
    arguments = sys.argv[1:]
    listens = arguments[:1] == ["--listen"]
    path = arguments[1] if listens else ""
    user = "".join(arguments[2:3] if listens else arguments[:1])
    frames = None
    if not listens:
        frames = Frames(os.dup(0), os.dup(1))
        os.dup2(2, 1)  # what a mistake prints does not end up among the answers
    try:
        executor = Executor(user)
        if frames is None:
            frames = executor.listen(path)
    except (RequestError, OSError) as error:
        if frames is None:
            os.write(2, f"{error}\n".encode("utf-8", "replace"))
            return 2
        frames.send({"error": f"{type(error).__name__}: {error}"})
        return 0
    try:
        executor.serve(frames, _VOLUMES if listens else ())
    except HarnessGoneError:
        executor.end_all()
    return 0


if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
    os._exit(status)
