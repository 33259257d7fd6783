"""Programs that start other programs: what `env`, `xargs`, `find -exec`, `bash -c` and their like run in the end.

    innermost(read_script("timeout 5 bash -c 'git log'"))     # ... Call(("git", "log"))

A file that the same text writes with `cat`, `tee`, `echo` or `printf` and then runs counts too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lightning_smith.agent.invocations import Call, Script, Words, read_script

_MAX_NESTING = 8
"""Scripts inside of scripts; a deeper one is opaque."""
_MAX_WRAPPERS = 64
"""Programs that start one another in the words of one call; what comes after them is opaque."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash"})
_SHELL_VALUES = frozenset({"-o", "-O", "+o", "+O", "--rcfile", "--init-file"})
_EXEC = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


@dataclass(frozen=True)
class _Wrapper:
    """How to find the program that a wrapper starts.

    `values` are its options that take the next word, `positionals` its own arguments before the program.
    """

    values: frozenset[str] = frozenset()
    positionals: int = 0


def _wrapper(values: str = "", positionals: int = 0) -> _Wrapper:
    return _Wrapper(frozenset(values.split()), positionals)


_WRAPPERS = {
    "builtin": _wrapper(),
    "chrt": _wrapper("-T -P -D", 1),
    "command": _wrapper(),
    "coproc": _wrapper(),
    "doas": _wrapper("-u -C"),
    "env": _wrapper("-u --unset -C --chdir"),
    "exec": _wrapper("-a"),
    "ionice": _wrapper("-c -n --class --classdata"),
    "nice": _wrapper("-n --adjustment"),
    "nohup": _wrapper(),
    "proxychains": _wrapper("-f"),
    "setsid": _wrapper(),
    "stdbuf": _wrapper("-i -o -e --input --output --error"),
    "strace": _wrapper("-e -o -p -s -u"),
    "sudo": _wrapper("-u -g -h -p -C -D -R -T -U --user --group"),
    "taskset": _wrapper("", 1),
    "time": _wrapper("-f -o --format --output"),
    "timeout": _wrapper("-s --signal -k --kill-after", 1),
    "unbuffer": _wrapper(),
    "xargs": _wrapper(
        "-a -d -E -I -L -n -P -s --arg-file --delimiter --max-args --max-procs --max-lines --replace"
    ),
    "xvfb-run": _wrapper("-n -s -e -f -p -w --server-args --server-num"),
}

_RUNNERS = {
    ("conda", "run"): _wrapper("-n -p --name --prefix --cwd"),
    ("mamba", "run"): _wrapper("-n -p --name --prefix --cwd"),
    ("micromamba", "run"): _wrapper("-n -p --name --prefix --cwd"),
    ("hatch", "run"): _wrapper(),
    ("pdm", "run"): _wrapper("-p --project"),
    ("pipenv", "run"): _wrapper(),
    ("poetry", "run"): _wrapper(),
    ("uv", "run"): _wrapper(
        "--with --with-requirements -p --python --project --directory --extra --group --env-file"
    ),
}


def innermost(script: Script) -> Script:
    """Return the script with every program that its calls start, wrappers and those that they wrap alike."""
    found = Script(variables=set(script.variables), functions=set(script.functions))
    _Unwrapper(found).script(script, 0)
    return found


class _Unwrapper:
    """Collects into `found`."""

    def __init__(self, found: Script) -> None:
        self.found = found
        self.files: dict[str, str] = {}
        """Texts that were written to files, by path."""

    def script(self, script: Script, nesting: int) -> None:
        self.found.opaque += script.opaque
        self.found.variables |= script.variables
        self.found.functions |= script.functions
        for call in script.calls:
            self.call(call, nesting)

    def call(self, call: Call, nesting: int, wrappers: int = 0) -> None:
        if call.name in self.found.functions:
            return
        self.found.calls.append(call)
        for words in _wrapped(call):
            if words and (words[0] is None or wrappers >= _MAX_WRAPPERS):
                self.found.opaque += 1
            elif words:
                self.call(replace(call, words=words, writes=(), reads=()), nesting, wrappers + 1)
        for path, text in _written(call):
            self.files[path] = text
        for text in (*_scripts(call), *self.files_run(call)):
            if text is None or nesting >= _MAX_NESTING:
                self.found.opaque += 1
            else:
                self.script(read_script(text, call.folder), nesting + 1)

    def files_run(self, call: Call) -> Iterator[str]:
        """Texts of known files that a call runs with a shell."""
        if call.name in _SHELLS or call.name in ("source", "."):
            operand = next(
                (word for word in call.words[1:] if word is None or not word.startswith("-")), None
            )
        else:
            operand = call.words[0]
        text = self.files.get(call.path(operand) or "")
        if text is not None and (not text.startswith("#!") or "sh" in text.split("\n", 1)[0]):
            yield text


def _written(call: Call) -> Iterator[tuple[str, str]]:
    """Yield files that a call writes, with their texts where these stand in the command."""
    text = call.stdin if call.name in ("cat", "tee") else None
    if call.name in ("echo", "printf"):
        text = _joined([word for word in call.words[1:] if word not in ("-e", "-n")])
    targets = [*call.writes, *(call.words[1:] if call.name == "tee" else ())]
    for path in map(call.path, targets):
        if text is not None and path is not None:
            yield path, text


def _wrapped(call: Call) -> Iterator[Words]:
    """Yield the commands that the arguments of a call hold as words of their own."""
    name, words = call.name, call.words
    if name == "find":
        yield from _find_commands(words)
    elif name == "busybox":
        yield words[1:]
    elif name == "command" and any(word in ("-v", "-V") for word in words[1:2]):
        return
    elif name in _WRAPPERS:
        yield _after(words[1:], _WRAPPERS[name])
    elif name is not None and len(words) > 1 and words[1] is not None and (name, words[1]) in _RUNNERS:
        yield _after(words[2:], _RUNNERS[name, words[1]])


def _find_commands(words: Words) -> Iterator[Words]:
    start: int | None = None
    for index, word in enumerate(words):
        if start is None and word in _EXEC:
            start = index + 1
        elif start is not None and word in (";", "+"):
            yield words[start:index]
            start = None
    if start is not None:
        yield words[start:]


def _after(words: Words, wrapper: _Wrapper) -> Words:
    """Return what follows a wrapper's own options, assignments and arguments."""
    index, left = 0, wrapper.positionals
    while index < len(words):
        word = words[index]
        if word is None:
            if left == 0:
                break
            left, index = left - 1, index + 1
        elif word == "--":
            return words[index + 1 + left :]
        elif word.startswith("-") and len(word) > 1:
            index += 2 if word in wrapper.values else 1
        elif _ASSIGNMENT.match(word):
            index += 1
        elif left:
            left, index = left - 1, index + 1
        else:
            break
    return words[index:]


def _scripts(call: Call) -> Iterator[str | None]:
    """Pieces of bash that a call runs; None for one whose text is not known."""
    name, arguments = call.name, call.words[1:]
    if name in _SHELLS:
        yield from _shell_scripts(call)
    elif name == "eval" and arguments:
        yield _joined(arguments)
    elif name == "trap" and len(arguments) > 1 and arguments[0] not in ("-", "-l", "-p", ""):
        yield arguments[0]
    elif name == "alias":
        yield from (word.split("=", 1)[1] for word in arguments if word is not None and "=" in word)
    elif name in ("source", ".") and arguments[:1] == ("/dev/stdin",):
        yield call.stdin
    elif name == "env":
        for index, word in enumerate(arguments):
            if word in ("-S", "--split-string"):
                yield _joined(arguments[index + 1 :])
            elif word is not None and word.startswith(("-S", "--split-string=")):
                yield word.removeprefix("--split-string=").removeprefix("-S")
    elif name == "watch" or name == "parallel":
        yield _joined(_after(arguments, _wrapper("-n --interval -j --jobs")))
    elif name in ("su", "script", "flock") and "-c" in arguments:
        yield next(iter(arguments[arguments.index("-c") + 1 :]), None)


def _shell_scripts(call: Call) -> Iterator[str | None]:
    index, words = 1, call.words
    command = False
    while index < len(words):
        word = words[index]
        if word is None or not word.startswith(("-", "+")) or word in ("-", "--"):
            break
        command = command or (not word.startswith("--") and "c" in word[1:])
        index += 2 if word in _SHELL_VALUES else 1
    operand = words[index : index + 1]
    if command:
        yield from operand
    elif (not operand or operand[0] in ("-", "/dev/stdin")) and (
        call.stdin is not None or call.piped or call.reads
    ):
        yield call.stdin


def _joined(words: Sequence[str | None]) -> str | None:
    known = [word for word in words if word is not None]
    return " ".join(known) if len(known) == len(words) else None
