"""The command of a reply: whole, exactly one, or a format error."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_smith.agent.actions import Action, FormatError, parse_action
from lightning_smith.agent.shell import ShellText

COMMANDS = {
    "prose before": ("I will look.\n```bash\nls\n```", "ls"),
    "prose after": ("```bash\nls\n```\nThat lists it.", "ls"),
    "several lines": ("```bash\ncd pkg\nls -l\n```", "cd pkg\nls -l"),
    "CR LF": ("```bash\r\nls\r\n```\r\n", "ls"),
    "indented": ("   ```bash\n   ls\n   ```", "ls"),
    "indented here-document": ("  ```bash\n  cat <<E\n    a\n  E\n  ```", "cat <<E\n  a\nE"),
    "other language first": ("```python\nprint(1)\n```\n```bash\nls\n```", "ls"),
    "bash inside another language": ("````markdown\n```bash\nrm x\n```\n````\n```bash\nls\n```", "ls"),
    "thinking": ("<think>\n```bash\nrm -rf .\n```\n</think>\n```bash\nls\n```", "ls"),
    "thinking on one line": ("<think>hm</think>```\n```\n```bash\nls\n```", "ls"),
    "thinking that the prompt opened": ("```bash\nrm -rf .\n```\nno.\n</think>\n```bash\nls\n```", "ls"),
    "tags inside the command": (
        "```bash\nsed -i 's#<think>#</think>#' a\n```",
        "sed -i 's#<think>#</think>#' a",
    ),
    "here-document with fences": (
        "```bash\ncat > README.md <<'EOF'\n```python\nprint(1)\n```\nEOF\n```",
        "cat > README.md <<'EOF'\n```python\nprint(1)\n```\nEOF",
    ),
    "two here-documents": (
        '```bash\ncat <<A <<-"B C"\n```\nA\n```\n\tB C\nls\n```',
        'cat <<A <<-"B C"\n```\nA\n```\n\tB C\nls',
    ),
    "fence between quotes": ("```bash\necho 'a\n```\nb'\n```", "echo 'a\n```\nb'"),
    "here-document in a substitution": (
        "```bash\ngit commit -m \"$(cat <<'EOF'\nit's\n```\nEOF\n)\"\n```",
        "git commit -m \"$(cat <<'EOF'\nit's\n```\nEOF\n)\"",
    ),
    "shift is no here-document": ("```bash\necho $((1<<2)) # don't\n```", "echo $((1<<2)) # don't"),
    "here-string": ("```bash\ngrep x <<< 'EOF'\n```", "grep x <<< 'EOF'"),
    "longer fence": ("````bash\nls\n````", "ls"),
}

ERRORS = {
    "glued fences": "```bash\npwd && ls\n``````bash\ncat a\n```",
    "two blocks": "```bash\nls\n```\n```bash\npwd\n```",
    "cut": "```bash\nls",
    "cut in a here-document": "```bash\ncat > f <<EOF\n```\ncode\n```\n",
    "cut between quotes": "```bash\npython -c 'print(1)\n```",
    "cut in another block": "```bash\nls\n```\n```python\nprint(",
    "fence of another kind": "~~~bash\nls\n~~~",
    "no block": "ls",
    "nothing": "",
    "empty block": "```bash\n\n```",
    "other language only": "```sh\nls\n```",
    "words after the language": "```bash title=x\nls\n```",
    "block that opens inside of a block": "```bash\nls\n```python\nprint(1)\n```",
    "endless thinking": "<think>\n```bash\nls\n```",
    "command within thinking": "```bash\nls\n</think>\n```bash\nls\n```",
    "inline": "Run ```bash ls``` now.",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_whole_command(name: str) -> None:
    reply, command = COMMANDS[name]
    assert parse_action(reply) == Action(command)


@pytest.mark.parametrize("name", ERRORS)
def test_format_error(name: str) -> None:
    assert isinstance(parse_action(ERRORS[name]), FormatError)


def test_reason_names_what_is_open() -> None:
    error = parse_action("```bash\ncat <<'END'\nx\n```")
    assert isinstance(error, FormatError) and "here-document up to END" in error.reason


@given(st.text(alphabet="`bash\nls'\"<E ($)\\#{}\r", max_size=60))
@settings(max_examples=300)
def test_any_reply_gives_a_command_of_it_or_an_error(reply: str) -> None:
    action = parse_action(reply)
    if isinstance(action, Action):
        assert action.command.strip() and "\r\n" not in action.command


MINI = {
    "its own form": ("THOUGHT: look\n\n```mswea_bash_command\nls -l\n```", "ls -l"),
    "in the middle of a line": ("Now ```mswea_bash_command \n\n  ls\n```` and so on", "ls"),
    "bash is prose": ("```bash\nrm x\n```\n```mswea_bash_command\nls\n```", "ls"),
    "cut at the first fence": ("```mswea_bash_command\ncat <<'E'\n```\nE\n```", "cat <<'E'"),
    "carriage returns within": ("```mswea_bash_command\r\ncd a\r\nls\r\n```", "cd a\r\nls"),
    "nothing": ("```mswea_bash_command\n\n```", ""),
    "two": ("```mswea_bash_command\nls\n```\n```mswea_bash_command\npwd\n```", None),
    "none whole": ("```mswea_bash_command\nls", None),
    "on one line": ("```mswea_bash_command ls```", None),
    "thinking counts once one is said": (
        "<think>\n```mswea_bash_command\nrm x\n```\n</think>\n```mswea_bash_command\nls\n```",
        None,
    ),
}
"""Replies with mini-swe-agent's fence, and the command that mini-swe-agent 2.4.6 runs, None for a format error."""


@pytest.mark.parametrize("name", MINI)
def test_the_fence_of_mini_swe_agent_is_read_as_it_reads_it(name: str) -> None:
    reply, command = MINI[name]
    action = parse_action(reply)
    assert action == Action(command) if command is not None else isinstance(action, FormatError)


@pytest.mark.parametrize(
    "reply",
    [
        "<think>\n```mswea_bash_command\nrm x\n```\n</think>\n```bash\nls\n```",
        "```mswea_bash_command\nrm x\n```\n</think>\n```bash\nls\n```",
    ],
)
def test_the_fence_of_mini_swe_agent_in_thinking_is_not_read(reply: str) -> None:
    assert parse_action(reply) == Action("ls")


def test_the_fence_of_mini_swe_agent_in_a_bash_block_is_text() -> None:
    command = "cat > notes.md <<'EOF'\n```mswea_bash_command\nls\n```\nEOF"
    assert parse_action(f"```bash\n{command}\n```") == Action(command)
    cut = parse_action("```bash\ncat > notes.md <<'EOF'\n```mswea_bash_command\nls\n```")
    assert isinstance(cut, FormatError) and "here-document up to EOF" in cut.reason


WHOLE = [
    "echo a\\'b",
    "echo $'it\\'s'",
    'echo "a $(echo ")") b"',
    "for f in $(ls); do case $f in a) echo 1;; (b) echo 2;; esac; done",
    "x=(1 2\n3)",
    'echo `echo "a" # b`',
    "echo \"${x:-'a'}\"",
    "((x = 1 << 2)); let y=1",
    "cat <<\\EOF\n$(\nEOF",
    "echo a#b 'c'",
    "f() { echo; }",
    "cat <<A; cat <<B\n'\nA\n\"\nB",
]
OPEN = [
    "echo 'a",
    'echo "$(ls',
    "cat <<E\nx",
    "x=(1",
    "echo `ls",
    "echo ${x",
    "((1 + 2",
    "cat <<E <<F\nE",
    "( ls",
]
OPEN.append('echo "${x:-it\'s}"')


@pytest.mark.parametrize("text", WHOLE + OPEN)
def test_wholeness_is_what_bash_says(text: str) -> None:
    shell = ShellText()
    for line in text.split("\n"):
        shell.add(line)
    checked = subprocess.run(["bash", "-n"], input=f"{text}\n".encode(), capture_output=True, check=False)
    bash_takes_it = checked.returncode == 0 and b"here-document" not in checked.stderr
    assert shell.whole == bash_takes_it == (text in WHOLE)
