"""Says no to commands that break the rules of a task, with a sentence that the policy can use.

    inspect("cat setup.py && g''it log").refusal      # Refusal(Kind.GIT, "git is switched off here: ...")

This is courtesy and measurement. What keeps the rules is the sandbox: it has no history, no network and no harness,
whatever a command looks like. So the guard reads only what a command's text says (`invocations`, `wrappers`): what is
expanded, decoded or written in another language than bash is let through, and counted as opaque where it names a
program.

- git: `git` and its front ends, reading a `.git` folder. Not `grep git`, `.gitignore`, `find -path ./.git -prune`.
- install: pip, uv, conda, apt, npm and their like where they change what is installed, `setup.py install`. Not
  `pip list`, `setup.py build_ext --inplace`.
- fetch: curl, wget, ssh, nc and their like, `python -m http.server`, /dev/tcp. Not `rsync` between folders.
- harness: /opt/agent, other processes' environment, the rollout's own variables, writing pytest's configuration in
  the repository. Not reading it, nor writing it in /tmp.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from lightning_smith.agent.invocations import TREE, Call, Words, read_script
from lightning_smith.agent.wrappers import innermost
from lightning_smith.grading.protection import CONFIGURATION


class Kind(StrEnum):
    """Why a command is refused."""

    GIT = "git"
    INSTALL = "install"
    FETCH = "fetch"
    HARNESS = "harness"


SENTENCES = {
    Kind.GIT: (
        "Refused: git is switched off here. Read and edit the files themselves; what you changed is taken without git "
        "when you submit."
    ),
    Kind.INSTALL: (
        "Refused: nothing can be installed here. What the code and its tests need is there already; work with that."
    ),
    Kind.FETCH: f"Refused: there is no network here. Solve the task from the files below {TREE}.",
    Kind.HARNESS: (
        "Refused: this belongs to what runs and grades you, or configures the tests, and counts for nothing. Change "
        "the source code instead."
    ),
}


@dataclass(frozen=True)
class Refusal:
    """A command that is not run."""

    kind: Kind
    program: str
    """What it was refused for: a program, a path or a variable."""

    @property
    def sentence(self) -> str:
        """What the policy is told."""
        return SENTENCES[self.kind]


@dataclass(frozen=True)
class Decision:
    """What the guard thinks of a command; `opaque` counts places where its text does not say what runs."""

    refusal: Refusal | None = None
    opaque: int = 0


def inspect(command: str) -> Decision:
    """Judge a command that starts in /testbed; the first reason in the order of its text counts."""
    script = innermost(read_script(command))
    for variable in sorted(script.variables):
        if _SECRETS.match(variable):
            return Decision(Refusal(Kind.HARNESS, f"${variable}"), script.opaque)
    for call in script.calls:
        if call.name in script.functions:
            continue
        for kind, rule in _RULES:
            program = rule(call)
            if program is not None:
                return Decision(Refusal(kind, program), script.opaque)
    return Decision(None, script.opaque)


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SECRETS = re.compile(r"(AGL_[A-Z_]+|LS_(STAGE_FILE|INSTANCE_ID|SAMPLE|SEED|GRADE))\Z")
"""Variables that tell a rollout where to post and with which key; commands see none of them."""

# ------------------------------------------------------------------------------------------------------------- git

_GIT_PROGRAMS = frozenset({"git", "gitk", "tig", "hub", "lazygit"})
_READERS = _names(
    "bat cat cd cp dir file find head hexdump less ls more mv od stat strings tail tar tree xxd zcat"
)


def _git(call: Call) -> str | None:
    name = call.name or ""
    if name in _GIT_PROGRAMS or name.startswith("git-"):
        return name
    if name in _READERS:
        for word in _paths_read(call):
            path = call.path(word)
            if path is not None and ".git" in path.split("/"):
                return path
    return None


def _paths_read(call: Call) -> Iterator[str]:
    """Arguments that name files; for `find` only where it starts, since what follows is a condition."""
    for word in call.words[1:]:
        if call.name == "find" and word is not None and word.startswith(("-", "(", "!")):
            return
        if word is not None and not word.startswith("-"):
            yield word


# --------------------------------------------------------------------------------------------------------- install


@dataclass(frozen=True)
class _Tool:
    """Subcommands of a program that are refused, and others, so that an option's value is not taken for one."""

    refused: frozenset[str]
    harmless: frozenset[str] = frozenset()

    def subcommand(self, arguments: Words) -> str | None:
        """Return the refused subcommand that the arguments begin with."""
        known = self.refused | self.harmless
        word = next((word for word in arguments if word in known), None)
        return word if word in self.refused else None


def _tool(refused: str, harmless: str = "") -> _Tool:
    return _Tool(_names(refused), _names(harmless))


_PIP = _tool(
    "install download uninstall wheel",
    "list show freeze check config cache index search help debug inspect hash lock completion",
)
_CONDA = _tool(
    "install create update upgrade remove uninstall", "list info search env run activate config clean"
)
_APT = _tool(
    "install update upgrade full-upgrade dist-upgrade build-dep download source remove purge",
    "list show search policy depends rdepends",
)
_NODE = _tool("install i ci add update upgrade", "run test exec list ls start view why")
_TOOLS = {
    **dict.fromkeys(("pip", "pipx"), _PIP),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _CONDA),
    **dict.fromkeys(("apt", "apt-get", "aptitude", "nala"), _APT),
    **dict.fromkeys(
        ("dnf", "yum", "zypper", "apk", "brew", "snap"), _tool("install add update upgrade remove")
    ),
    **dict.fromkeys(("npm", "yarn", "pnpm", "bun"), _NODE),
    "uv": _tool("add sync", "run pip tool python lock tree venv version cache"),
    "poetry": _tool("install add update remove", "run show check build env config"),
    "pdm": _tool("install add update sync", "run list info"),
    "pipenv": _tool("install update sync", "run graph check"),
    "gem": _tool("install update", "list"),
    "cargo": _tool("install add", "build test run check"),
    "go": _tool("get install", "build test run list vet"),
}
_INSTALLERS = frozenset({"easy_install", "npx", "uvx", "pacman", "cpan", "cpanm"})
_NUMBERED = re.compile(r"(pip|python|easy_install|pypy)[0-9.]*\Z")
_SETUP = frozenset({"install", "develop", "easy_install"})


def _install(call: Call) -> str | None:
    name, arguments = _program(call)
    if name in _INSTALLERS:
        return name
    if name == "dpkg" and any(word in ("-i", "--install") for word in arguments):
        return "dpkg -i"
    if name == "python":
        return _python_install(arguments)
    if name == "uv" and arguments[:1] in (("pip",), ("tool",), ("python",)):
        found = _PIP.subcommand(arguments[1:]) or ("sync" if "sync" in arguments else None)
        return f"uv {arguments[0]} {found}" if found else None
    if name == "conda" and arguments[:1] == ("env",):
        return "conda env" if _CONDA.subcommand(arguments[1:]) else None
    tool = _TOOLS.get(name)
    found = tool.subcommand(arguments) if tool else None
    return f"{name} {found}" if found else None


def _program(call: Call) -> tuple[str, Words]:
    """Name without a version's number, and arguments."""
    name = call.name or ""
    match = _NUMBERED.match(name)
    return (match[1] if match else name).replace("pypy", "python"), call.words[1:]


def _python_install(arguments: Words) -> str | None:
    module, rest = _module(arguments)
    if module in ("pip", "pip3"):
        found = _PIP.subcommand(rest)
        return f"pip {found}" if found else None
    if module in ("ensurepip", "easy_install"):
        return module
    for index, word in enumerate(arguments):
        if word is not None and posixpath.basename(word) == "setup.py":
            found = next((word for word in arguments[index + 1 :] if word in _SETUP), None)
            return f"setup.py {found}" if found else None
    return None


def _module(arguments: Words) -> tuple[str | None, Words]:
    """Return what `python -m` runs, and its arguments."""
    for index, word in enumerate(arguments):
        if word == "-m":
            return (arguments[index + 1] if index + 1 < len(arguments) else None), arguments[index + 2 :]
        if word is not None and word.startswith("-m") and len(word) > 2:
            return word[2:], arguments[index + 1 :]
        if word is None or word == "-c" or not word.startswith("-"):
            break
    return None, ()


# ----------------------------------------------------------------------------------------------------------- fetch

_FETCHERS = _names(
    "aria2c curl curlie dig ftp gh hf http https huggingface-cli lftp links lynx nc ncat netcat "
    "nslookup rclone scp sftp socat ssh svn telnet w3m wget wget2 xh"
)
_NETWORK_MODULES = (
    "http",
    "urllib",
    "ftplib",
    "telnetlib",
    "xmlrpc",
    "smtplib",
    "wget",
    "httpie",
    "requests",
    "httpx",
)
_REMOTE = re.compile(r"[\w.-]+(@[\w.-]+)?::?[^\\]|rsync://")
_DEV_TCP = re.compile(r"/dev/(tcp|udp)/")


def _fetch(call: Call) -> str | None:
    name, arguments = _program(call)
    if name in _FETCHERS:
        return name
    if name == "rsync" and any(word is not None and _REMOTE.match(word) for word in arguments):
        return name
    if name == "python":
        module = _module(arguments)[0] or ""
        return f"python -m {module}" if module.split(".")[0] in _NETWORK_MODULES else None
    for word in (*call.reads, *call.writes):
        if word is not None and _DEV_TCP.match(word):
            return word
    return None


# --------------------------------------------------------------------------------------------------------- harness

_HARNESS_PATHS = (
    "/opt/agent",
    "/run/secrets",
    "/var/run/secrets",
    "/run/docker.sock",
    "/var/run/docker.sock",
)
_PROCESS_FILE = re.compile(r"/proc/[^/]+/(environ|mem|root|cwd)(/|\Z)")
_SPEAKERS = frozenset({"echo", "printf"})


def _harness(call: Call) -> str | None:
    words = () if call.name in _SPEAKERS else call.words
    for word in (*words, *call.reads, *call.writes):
        path = call.path(word)
        if path is not None and (
            any(path == place or path.startswith(f"{place}/") for place in _HARNESS_PATHS)
            or _PROCESS_FILE.match(path)
        ):
            return path
    if call.name == "printenv":
        return next((word for word in call.words if word is not None and _SECRETS.match(word)), None)
    for word in _paths_written(call):
        path = call.path(word)
        if path is not None and path.startswith(f"{TREE}/") and _configures_tests(posixpath.basename(path)):
            return path
    return None


def _configures_tests(name: str) -> bool:
    return name in CONFIGURATION or name.endswith(".pth")


def _paths_written(call: Call) -> Iterator[str | None]:
    """Yield paths that a call writes, moves or removes, as far as its arguments say."""
    yield from call.writes
    operands = [word for word in call.words[1:] if word is None or not word.startswith("-")]
    if call.name in ("tee", "touch", "rm", "unlink", "truncate", "mv"):
        yield from operands
    elif call.name in ("cp", "ln", "install"):
        yield from operands[-1:]
    elif call.name in ("sed", "perl") and any(
        word is not None and re.match(r"-[A-Za-z]*i|--in-place", word) for word in call.words[1:]
    ):
        yield from operands[1:]


_RULES: tuple[tuple[Kind, Callable[[Call], str | None]], ...] = (
    (Kind.GIT, _git),
    (Kind.INSTALL, _install),
    (Kind.FETCH, _fetch),
    (Kind.HARNESS, _harness),
)
