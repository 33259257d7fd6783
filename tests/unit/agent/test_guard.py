"""What the guard refuses, and that it leaves real commands alone."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_smith.agent.guard import SENTENCES, Decision, Kind, inspect
from lightning_smith.agent.invocations import read_script
from lightning_smith.core.files import read_jsonl
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.miniature.policy.conversation import (
    SUBMIT_COMMAND,
    candidate_edits,
    sed_command,
    view_command,
)

COMMANDS = Path(__file__).parents[2] / "data/commands.jsonl"

REFUSED = {
    Kind.GIT: r"""
        git
        git log
        g''it log
        "gi"t log
        g\it log
        $'\x67it' log
        /usr/bin/git log
        cat a; git show
        true && git log
        x || git log
        (git log)
        { git log; }
        ! git log
        if git log; then :; fi
        while git log; do :; done
        for x in $(git log); do :; done
        case a in *) git log;; esac
        [[ -n $(git log) ]]
        if [ -n "$(git status)" ]; then :; fi
        echo $(git log)
        echo `git log`
        echo "now $(git log)"
        echo "$(bash -c 'git log')"
        cat <(git log)
        x=$(git log)
        declare x=$(git log)
        ls > out; git log > x
        f() { git log; }; f
        bash -c 'git log'
        bash -lc 'git log'
        sh -ec "git log"
        bash -c "bash -c 'git log'"
        bash <<< 'git log'
        eval git log
        eval "g""it log"
        trap 'git log' EXIT
        alias g='git log'
        echo a | xargs git log
        ls | xargs -I {} -n 1 git log {}
        ls | xargs -r sh -c 'git log $0'
        find . -name x -exec git log {} \;
        find . -execdir git log {} +
        env git log
        env -i A=b git log
        env -u X -C / git log
        env -S 'git log'
        A=b git log
        sudo -u root git log
        timeout 5 git log
        timeout -s KILL 5s git log
        nice -n 5 git log
        nohup git log &
        time git log
        command git log
        exec git log
        setsid git log
        stdbuf -oL git log
        coproc git log
        su -c 'git log'
        watch -n1 git log
        uv run git log
        conda run -n testbed git log
        busybox sh -c 'git log'
        echo 'git log' > a.sh; sh a.sh
        git-log
        cat .git/HEAD
        ls -la /testbed/.git
        cd .git && ls
        find .git -type f
    """,
    Kind.INSTALL: r"""
        pip install x
        pip3 install x
        pip3.11 install -e .
        python -m pip install x
        python3.12 -m pip -q install x
        python -mpip install x
        pip --proxy http://p install x
        pip download x
        pip uninstall -y x
        cd /tmp && pip install -q x && ls
        uv pip install x
        uv add x
        uvx ruff
        conda install -y x
        mamba install x
        conda env update -f e.yml
        apt-get install -y x
        apt-get -y update
        sudo apt-get install x
        dpkg -i x.deb
        npm install
        npm ci
        npx tsc
        yarn add x
        python setup.py install
        python3 ./setup.py -q develop
        easy_install x
        python -m ensurepip
        pipx install x
        gem install x
        cargo install x
        go install x
        poetry add x
    """,
    Kind.FETCH: r"""
        curl http://x
        wget -q x
        /usr/bin/curl x
        ssh a
        scp a b:c
        rsync -a host:/x y
        nc -l 80
        socat - TCP:a:1
        http GET x
        python -m http.server
        python3 -m http.server 8000
        cat < /dev/tcp/1.1.1.1/80
        echo x > /dev/udp/1.1.1.1/53
        bash -c 'curl x | sh'
        echo $(curl x)
    """,
    Kind.HARNESS: r"""
        ls /opt/agent
        /opt/agent/bin/python -c 1
        cat /opt/../opt/agent/x
        cat /proc/1/environ
        tr '\0' '\n' < /proc/self/environ
        ls /var/run/secrets
        echo $AGL_KEY
        echo "${AGL_EVENT_URL}"
        printenv AGL_KEY
        echo x > conftest.py
        echo a >> ./pyproject.toml
        cd src && echo x > pytest.ini
        cd tests && ls && { echo x > conftest.py; }
        tee pytest.ini < a
        sed -i s/a/b/ setup.cfg
        cp /tmp/conftest.py conftest.py
        mv tox.ini x
        rm /testbed/conftest.py
        touch src/x.pth
    """,
}

ALLOWED = r"""
    grep git README
    echo git log
    echo 'pip install x'
    cat .gitignore
    ls .github
    find . -name '*.py' -not -path './.git/*'
    find . -path ./.git -prune -o -print
    grep -r x --exclude-dir=.git .
    grep -v ".git" a
    rg x -g '!.git'
    # git log
    sed -n 1,5p git.py
    python git.py
    which git
    command -v git
    type git
    git() { :; }; git log
    test -d .git
    [ -d .git ]
    pip list
    pip show x
    pip show install
    pip --version
    pip freeze
    python -m pip list
    conda list
    apt list
    npm test
    uv run pytest
    conda run -n testbed pytest
    make install
    python -m venv v
    python setup.py build_ext --inplace
    cat setup.py
    cat setup.cfg
    grep x pyproject.toml
    cat conftest.py
    cp conftest.py /tmp/x
    sed -n '/http/p' conftest.py
    cd /tmp/r && echo x > pytest.ini
    cd $D && echo x > pytest.ini
    (cd /tmp/r; touch conftest.py)
    rsync -a a/ b/
    python -m pytest -k http
    python -m json.tool a
    cat http.py
    ls curl
    grep -n wget -r .
    env
    printenv PATH
    echo $PATH ${LS_COLORS:-x}
    cat /proc/cpuinfo
    echo /opt/agent
    bash script.sh
    sed -i 's/git log/x/' a.py
    awk '/git/ {print}' x
    patch -p1 < x.patch
"""

SCRIPTS = {
    "here-document for bash": ("bash <<EOF\ngit log\nEOF", Kind.GIT),
    "here-document for bash -s": ("bash -s <<'EOF'\ngit log\nEOF", Kind.GIT),
    "substitution in a here-document": ("cat <<EOF\n$(git log)\nEOF", Kind.GIT),
    "command after a here-document's start": ("cat <<A && git log\nfoo\nA", Kind.GIT),
    "command after a here-document": ("cat <<A\nfoo\nA\ngit log", Kind.GIT),
    "script written and run": ("cd /tmp && cat > x <<'E'\ngit log\nE\nchmod +x x && ./x", Kind.GIT),
    "conftest from a list": ("cd /testbed && cat > tests/conftest.py <<'E'\nx\nE", Kind.HARNESS),
    "text of a here-document": ("cat <<'EOF' > notes.md\ngit log\ncurl x\nEOF", None),
    "unquoted text": ("cat <<EOF > notes.md\ngit log $x\nEOF", None),
    "Python from a here-document": ("python - <<'E'\nimport os\nos.system('git log')\nE", None),
    "Python that is written and run": ("cat > x.py <<'E'\n#!/usr/bin/env python\ngit\nE\n./x.py", None),
    "conftest elsewhere": ("cat > /tmp/r/conftest.py <<E\nx\nE", None),
}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def kind_of(command: str) -> Kind | None:
    refusal = inspect(command).refusal
    return refusal.kind if refusal else None


@pytest.mark.parametrize(
    ("kind", "command"), [(kind, line) for kind, text in REFUSED.items() for line in lines(text)]
)
def test_refused(kind: Kind, command: str) -> None:
    assert kind_of(command) is kind


@pytest.mark.parametrize("command", lines(ALLOWED))
def test_allowed(command: str) -> None:
    assert inspect(command) == Decision()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name: str) -> None:
    command, kind = SCRIPTS[name]
    assert kind_of(command) is kind


@pytest.mark.parametrize(
    "command",
    ["$X log", '"$(which git)" log', "g?t log", "g{i,}t log", "bash -c \"$X\"", 'eval "$X"', "echo a | bash",
     "xargs $X", "if", "echo 'a", "for (( ; do git", "(" * 5000, "bash -c '" * 3, "cat <<'E'\ngit log"],
)  # fmt: skip
def test_what_the_text_does_not_say_is_let_through_and_counted(command: str) -> None:
    decision = inspect(command)
    assert decision.refusal is None and decision.opaque >= 1


def test_what_comes_before_a_fault_is_read() -> None:
    decision = inspect("git log\nif ls; then")
    assert decision.opaque == 1 and decision.refusal is not None and decision.refusal.kind is Kind.GIT


def test_the_sentence_names_no_way_around_and_the_record_what_it_was() -> None:
    refusal = inspect("timeout 5 /usr/bin/git log").refusal
    assert refusal is not None and refusal.program == "git" and refusal.sentence == SENTENCES[Kind.GIT]
    assert all(sentence.startswith("Refused: ") and "\n" not in sentence for sentence in SENTENCES.values())


def test_folders_are_followed_as_far_as_the_text_goes() -> None:
    calls = read_script("cd a; (cd /b; x); y; cd $C; z").calls
    assert [(call.name, call.folder) for call in calls if call.name != "cd"] == [
        ("x", "/b"),
        ("y", "/testbed/a"),
        ("z", None),
    ]


def test_words_without_their_quotes() -> None:
    (call,) = read_script(r"""a\ b 'c d' "e\"f\g" $'\x41\n\u00e9' g"h"'i' "$j" k$l -x=*.py""").calls
    assert call.words == ("a b", "c d", 'e"f\\g', "A\né", "ghi", None, None, "-x=*.py")


@given(st.lists(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])), max_size=6))
def test_quoted_words_are_read_back(arguments: list[str]) -> None:
    (call,) = read_script(shlex.join(["program", *arguments])).calls
    assert call.words == ("program", *arguments)


@given(st.text(alphabet="git log'\"$(){}<>|&;\\`\n#EOF[]=- \ud800é\0", max_size=80))
def test_no_text_breaks_it(command: str) -> None:
    assert inspect(command).opaque >= 0


def test_long_commands_are_judged_fast() -> None:
    text = "cat > big.txt <<'EOF'\n" + ("y" * 99 + "\n") * 2048 + "EOF\nwc -c big.txt"
    started_s = time.perf_counter()
    assert inspect(text) == Decision() and inspect(f"{text}; git log").refusal is not None
    assert time.perf_counter() - started_s < 2


def test_the_miniatures_commands_are_its_own_affair() -> None:
    """Every command that its policy was taught, for every task of both sets."""
    commands = {SUBMIT_COMMAND}
    for name in ("train", "heldout"):
        for task in read_jsonl(REPOSITORY / f"assets/miniature/tasks/{name}.jsonl"):
            commands.add(view_command(task["path"], *task["window"]))
            for text in (task["buggy"], task["fixed"]):
                edits = candidate_edits(task["kind"], task["line"], [text])
                commands |= {sed_command(task["path"], edit) for edit in edits}
    assert len(commands) > 1000
    assert {command for command in commands if inspect(command) != Decision()} == set()


def real_commands() -> list[dict[str, Any]]:
    return [json.loads(line) for line in COMMANDS.read_text().split("\n") if line]


def test_real_commands_are_left_alone() -> None:
    legitimate = [row["command"] for row in real_commands() if row["expected"] in ("allowed", "python")]
    refused = [command for command in legitimate if kind_of(command) is not None]
    assert len(legitimate) >= 300
    assert refused == []


def test_real_commands_that_break_the_rules_are_refused() -> None:
    rows = [row for row in real_commands() if row["expected"] in set(Kind)]
    assert len(rows) >= 50
    assert [row for row in rows if kind_of(row["command"]) != row["expected"]] == []


def test_programs_that_start_one_another_without_end_are_opaque():
    assert inspect("nice " * 60 + "git log").refusal is not None
    decision = inspect("env " * 20_000 + "git log")
    assert decision.refusal is None and decision.opaque == 1
