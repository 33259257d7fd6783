"""Every command of README and docs works as it is printed: planned, parsed or looked up, or named here with a reason.

A command is a line of a fenced block without a language or of `sh` (but for output, which begins with a bracket), and
code in a sentence that starts with a program. What Snakemake is asked for gets a plan, arguments of a script are read
by the script's own parser, tests and targets of make are looked up. The rest is in NOT_RUN; one in neither fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT, copy_checkout
from dry_runs import dry_run
from test_plans import PLANS, TARGETS

PAGES = sorted(
    {
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "profiles").glob("*.md"),
        *(ROOT / "envs").glob("*.md"),
        *(ROOT / "results").glob("*/README.md"),
        *(ROOT / "assets").glob("**/README.md"),
    }
)

NOT_RUN = {
    "pip install uv": "would change the machine's Python",
    "pip install openai": "what others do in an image",
    "python -m pip install openai": "what others do in an image",
    "docker pull": "names a program, not a call",
    "docker login": "names a program, not a call",
    "docker rmi swesmith/swesmith.x86_64.pypi_1776_addict.b3b2210e:openai": "tests/e2e/test_images_workflow.py does so",
    "uvx --from mini-swe-agent==2.4.6 mini-extra inspect work/mini/probe/*/trajectories": "tests/e2e/test_inspector.py "
    "opens trajectories with it",
    "uv run --frozen --project envs/<name> …": "has a place for a name",
}

PROGRAMS = (
    "uv",
    "uvx",
    "make",
    "snakemake",
    "python",
    "python3",
    "pytest",
    "pip",
    "docker",
    "printf",
    "alias",
)
HARNESS = "/opt/agent/bin/python3 -m "
"""The interpreter of every image; a test parses what it is given with this one."""


@dataclass(frozen=True)
class Command:
    """A command and the page that prints it."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def commands_of(page: Path) -> list[Command]:
    """Return the commands of a page, aliases of its own blocks replaced."""
    text = page.read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
    lines = [
        line
        for kind, block in blocks
        if kind in ("", "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.S | re.M)
    inline = [
        " ".join(code.split()) for _, code in re.findall(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", prose, re.S)
    ]
    typed = {re.sub(r"\s+# .*", "", line).strip() for line in lines}
    aliases: dict[str, str] = {}
    found = []
    for line in [*lines, *(code for code in inline if " " in code)]:
        line = re.sub(r"\s+# .*", "", line).strip()
        first = line.partition(" ")[0]
        if first == "alias":
            name, _, meaning = line.removeprefix("alias ").partition("=")
            aliases[name] = shlex.split(meaning)[0]
            continue
        if first in aliases:
            line = f"{aliases[first]} {line.partition(' ')[2]}"
        in_block = line and line in typed and not line.startswith("[")
        if in_block or line.partition(" ")[0] in PROGRAMS or line.startswith(HARNESS):
            found.append(Command(str(page.relative_to(ROOT)), line))
    return found


COMMANDS = sorted({(c.text): c for page in PAGES for c in commands_of(page)}.values(), key=lambda c: c.text)


def kind_of(command: Command) -> str:
    """Return how a command is tried."""
    words = command.words
    if command.text in NOT_RUN:
        return "not run"
    if words[0] == "make":
        return "make"
    if words[0] == "printf":
        return "printf"
    if command.text.startswith(HARNESS):
        return "script"
    if words[:2] == ["uv", "run"]:
        rest = [word for word in words[2:] if word != "--frozen"]
        if rest[:1] == ["--with"]:
            rest = rest[2:]
        return {"snakemake": "plan", "python": "script", "pytest": "collect"}.get(
            rest[0] if rest else "", "unknown"
        )
    return "unknown"


def of_kind(kind: str) -> list[Command]:
    return [command for command in COMMANDS if kind_of(command) == kind]


def arguments(command: Command, program: str) -> list[str]:
    return command.words[command.words.index(program) + 1 :]


def label(command: Command) -> str:
    return command.text[:60]


def test_every_command_is_tried_or_has_a_reason() -> None:
    undecided = [f"{c.page}: {c.text}" for c in COMMANDS if kind_of(c) == "unknown"]
    assert not undecided, "write what is typed (`uv run …`), or give a reason in NOT_RUN"
    assert not sorted(NOT_RUN.keys() - {command.text for command in COMMANDS}), (
        "no page prints these any more"
    )
    assert len(COMMANDS) > 40 and {kind_of(c) for c in COMMANDS} == {
        *("plan", "script", "collect", "make", "printf", "not run")
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone, with the files that pages say to write: a block of YAML behind "with `NAME`"."""
    folder = copy_checkout(tmp_path_factory.mktemp("clone") / "repo")
    release = tmp_path_factory.mktemp("release")
    (release / "SHA256SUMS").touch()
    for page in PAGES:
        for name, block in re.findall(
            r"with `([\w.-]+)`\n\n```yaml\n(.*?)^```", page.read_text(), re.S | re.M
        ):
            (folder / name).write_text(block.replace("/tmp/release", str(release)))
    return folder


def planned_elsewhere(words: list[str]) -> bool:
    """Whether tests/workflow/test_plans.py plans exactly this, or lists the targets."""
    if words == ["--list-target-rules"]:
        return True
    profile = words[1] if words[:1] == ["--profile"] else None
    targets = words[2:] if profile else words
    plans = {(profile, target) in PLANS for target in targets or ["all"]}
    return all(target in TARGETS or target == "import_images" for target in targets) and plans == {True}


@pytest.mark.parametrize("command", of_kind("plan"), ids=label)
def test_the_workflow_has_a_plan(command: Command, checkout: Path, tmp_path: Path) -> None:
    words = [word for word in arguments(command, "snakemake") if word not in ("-n",)]
    if planned_elsewhere(words):
        return
    code, said = dry_run("--quiet=rules", *words, cwd=checkout, log=tmp_path / "log")
    assert code == 0, said[-2000:]


def program_of(command: Command) -> tuple[Path, list[str]]:
    """Return the file of a script or module, and its arguments."""
    words = command.words
    after = words[words.index("python" if "python" in words else words[0]) + 1 :]
    if after[0] == "-m":
        return ROOT / f"{after[1].replace('.', '/')}.py", after[2:]
    return ROOT / after[0], after[1:]


class ParsedError(Exception):
    """Raised where a script would begin to work."""


@pytest.mark.parametrize("command", of_kind("script"), ids=label)
def test_a_script_takes_its_arguments(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path, words = program_of(command)
    assert path.is_file(), f"{command.page} runs {path.relative_to(ROOT)}"
    if "argparse" not in path.read_text():
        assert not words, f"{path.name} takes no arguments"
        return
    parse = argparse.ArgumentParser.parse_args

    def only_parse(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> None:
        parse(self, *args, **kwargs)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    monkeypatch.setattr(sys, "path", [str(path.parent), *sys.path])
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    if words == ["--help"]:
        with pytest.raises(SystemExit) as end:
            module.main(words)
        assert end.value.code == 0
        return
    with pytest.raises(ParsedError):
        module.main()
    for overlay in [words[i + 1] for i, word in enumerate(words) if word == "--configfile"]:
        assert (ROOT / overlay).is_file()


@pytest.mark.parametrize("command", of_kind("collect"), ids=label)
def test_tests_that_are_named_are_there(command: Command) -> None:
    """Looked up, not collected: that imports what most tests need."""
    words = arguments(command, "pytest")
    wanted = words.pop(words.index("-k") + 1) if "-k" in words else ""
    places = [ROOT / word for word in words if not word.startswith("-")] or [ROOT / "tests"]
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))]
    assert all(place.exists() for place in places) and any(wanted in file.read_text() for file in files)


@pytest.mark.parametrize("command", of_kind("make"), ids=label)
def test_make_has_the_target(command: Command) -> None:
    done = subprocess.run(
        ["make", "-n", *command.words[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "scripts/with-uv" in done.stdout, done.stderr


@pytest.mark.parametrize("command", of_kind("printf"), ids=label)
def test_what_is_written_by_hand_can_be_read(command: Command, tmp_path: Path) -> None:
    from scripts.rollout import read_replies

    subprocess.run(["sh", "-c", command.text], cwd=tmp_path, check=True)
    (written,) = tmp_path.iterdir()
    assert all(reply.startswith("```bash\n") for reply in read_replies(written))


def test_files_that_commands_read_are_made_by_the_workflow(checkout: Path, tmp_path: Path) -> None:
    """Under the profile whose folders they name."""
    words = {word for command in of_kind("script") for word in program_of(command)[1]}
    files = sorted(word for word in words if word.startswith("data/") and Path(word).suffix)
    assert len(files) >= 3
    for profile, mini in (("mini", True), ("k8s", False)):
        wanted = [file for file in files if file.startswith("data/mini/") is mini]
        plan = ["--profile", profile, "--quiet=rules", "--", *wanted]
        code, said = dry_run(*plan, cwd=checkout, log=tmp_path / profile)
        assert code == 0, said[-2000:]


def test_the_table_of_the_readme_has_columns_of_the_one_that_the_miniature_writes() -> None:
    """Rows as `make mini` printed them: the same columns, in their order, some left out."""
    (head,) = re.findall(r"^\| recipe \| step \| resolved.*$", (ROOT / "README.md").read_text(), re.M)
    whole = next(
        line
        for line in (ROOT / "results/mini-long/tables/main.md").read_text().splitlines()
        if line.startswith("| ")
    )
    names, columns = ([cell.strip() for cell in line.strip("|").split("|")] for line in (head, whole))
    assert [name for name in columns if name in names] == names
