"""The policy's language and the demonstrations made from other people's code."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import write_jsonl
from lightning_smith.miniature.policy import conversation as talk
from lightning_smith.miniature.policy.conversation import Edit, EditTask
from lightning_smith.miniature.policy.demonstrations import (
    MAX_SITES_PER_FUNCTION,
    Demonstrations,
    Site,
    collect,
    draw_edit,
    find_sites,
    lines_of_package,
    lines_of_tasks,
    place_window,
    python_files,
    whole_conversation,
)
from lightning_smith.miniature.tasks.table import Source, load_sources
from lightning_smith.repositories.tree_files import REGULAR, SYMLINK, TreeFile

ROOT = Path(__file__).resolve().parents[3]

CODE = '''\
def area(width, height):
    """Size of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("negative")
    half = width//2 + 1
    return width * height


def find(items, wanted):
    for place, item in enumerate(items):
        if item is not None and item == wanted:
            return place
        if wanted not in items:
            break
    return -1


def label(value):
    return "%d items" % value if value ** 2 > 16 else value & 3
'''


def sites_of(code: str, seed: int = 0) -> list[Site]:
    return find_sites(code, "shapes/area.py", "shapes", random.Random(seed))


def apply(line: str, edit: tuple[str, str, int]) -> str:
    """The edit as sed would make it, in Python."""
    old, new, nth = edit
    pattern = rf"\b{old}\b" if old.isdigit() else re.escape(old)
    match = list(re.finditer(pattern, line))[nth - 1]
    return line[: match.start()] + new + line[match.end() :]


def squeezed(text: str) -> str:
    return "".join(text.split())


# ----------------------------------------------------------------------------------- the language


TASK = EditTask(
    kind="cmp",
    entity="clamp",
    path="boltons/mathutils.py",
    first=40,
    lines=("def clamp(x, low, high):", "    if low > high:", "        raise ValueError(x)"),
    repair=Edit(41, " > ", " >= "),
)


def test_the_three_turns_are_written_as_agreed():
    assert talk.submit_prompt(TASK, talk.repair_command(TASK)) == (
        "<|im_start|>system\nFix the bug. Reply with one bash block.<|im_end|>\n"
        "<|im_start|>user\nclamp in boltons/mathutils.py is broken: "
        "a comparison is wrong in lines 40-42.<|im_end|>\n"
        "<|im_start|>assistant\n```bash\ngrep -n '' boltons/mathutils.py | sed -n '40,42p'\n```<|im_end|>\n"
        "<|im_start|>user\n<returncode>0</returncode>\n<output>\n"
        "40:def clamp(x, low, high):\n41:    if low > high:\n42:        raise ValueError(x)\n"
        "</output><|im_end|>\n"
        "<|im_start|>assistant\n```bash\nsed -i '41s| > | >= |' boltons/mathutils.py\n```<|im_end|>\n"
        "<|im_start|>user\n<returncode>0</returncode>\n<output>\n</output><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("edit", "command"),
    [
        (Edit(3, " * ", " // "), r"sed -i '3s| \* | // |' a.py"),
        (Edit(3, " ** ", " * ", 2), r"sed -i '3s| \*\* | * |2' a.py"),
        (Edit(120, "16", "15", 3), r"sed -i '120s|\b16\b|15|3' a.py"),
        (Edit(7, " not in ", " in "), "sed -i '7s| not in | in |' a.py"),
    ],
)
def test_sed_commands(edit: Edit, command: str):
    assert talk.sed_command("a.py", edit) == command
    assert "".join(talk.sed_parts("a.py", edit)) == command


@pytest.mark.skipif(shutil.which("sed") is None, reason="sed is not installed")
@pytest.mark.parametrize(
    ("buggy", "fixed"),
    [
        ("x = a * b * c", "x = a * b // c"),
        ("x = a ** b", "x = a*b"),
        ("x = v1 + 1 + 11 - 1", "x = v1 + 1 + 11 - 2"),
        ("if a is b or c is not d:", "if a is not b or c is not d:"),
        ("if a not in b and c not in d:", "if a not in b and c in d:"),
        ("ok = a <= b", "ok = a < b"),
    ],
)
def test_found_repairs_work_in_real_sed(tmp_path: Path, buggy: str, fixed: str):
    repair = talk.find_repair(buggy, fixed)
    assert repair is not None
    file = tmp_path / "a.py"
    file.write_text(f"first\n{buggy}\nlast\n")
    subprocess.run(["bash", "-c", talk.sed_command(str(file), Edit(2, *repair))], check=True)
    first, changed, last, _ = file.read_text().split("\n")
    assert (first, squeezed(changed), last) == ("first", squeezed(fixed), "last")


@pytest.mark.parametrize(
    ("buggy", "fixed"),
    [
        ("x = a + b", "x = a * b"),  # another family
        ("x = a + b + c", "x = a - b - c"),  # two changes
        ("x = a & b", "x = a | b"),  # no operator of the language
        ("x = a - b", "x = a - c"),
    ],
)
def test_what_no_single_edit_repairs_has_no_repair(buggy: str, fixed: str):
    assert talk.find_repair(buggy, fixed) is None


def test_candidates_hold_the_repair_and_no_half_operator():
    edits = talk.candidate_edits("cmp", 10, ["if a is not b and c not in d:", "    return 2 < 3"])
    assert Edit(10, " is not ", " is ") in edits
    assert Edit(10, " not in ", " in ") in edits
    assert {edit.old for edit in edits} == {" is not ", " not in ", " < "}
    assert talk.candidate_edits("const", 5, ["x = 0 + 12 + 12"]) == [
        Edit(5, "0", "1", 1),
        Edit(5, "12", "11", 1),
        Edit(5, "12", "13", 1),
        Edit(5, "12", "11", 2),
        Edit(5, "12", "13", 2),
    ]


# ------------------------------------------------------------------------------------------- sites


def test_every_site_is_one_line_and_its_edit_repairs_it():
    lines = CODE.split("\n")
    sites = sites_of(CODE)
    assert len(sites) > 8
    for site in sites:
        assert lines[site.line - 1] == site.fixed
        assert site.buggy != site.fixed
        assert squeezed(apply(site.buggy, site.edit)) == squeezed(site.fixed)
        assert site.context[site.line - site.context_first] == site.fixed
        assert site.entity_lines[0] <= site.line <= site.entity_lines[1]


def test_sites_cover_all_kinds_and_leave_bit_operators_alone():
    found = {(site.kind, site.edit[1].strip()) for seed in range(20) for site in sites_of(CODE, seed)}
    assert {kind for kind, _ in found} == set(talk.KINDS)
    assert ("arith", "//") in found  # width//2: a changed operator gets its two blanks
    assert ("cmp", "not in") in found
    assert not any("&" in operator for _, operator in found)


def test_a_changed_operator_has_one_blank_on_either_side():
    sites = sites_of("def f(a, b):\n    return (a)+(b)\n")
    assert [(site.buggy, site.edit) for site in sites] == [("    return (a) - (b)", (" - ", " + ", 1))]


def test_comparisons_without_blanks_and_operators_at_a_line_end_have_no_site():
    assert sites_of("def f(a, b):\n    return a<b\n") == []
    assert sites_of("def f(a, b):\n    return (a +\n            b)\n") == []


def test_no_site_without_a_function_or_in_a_long_one():
    assert sites_of("x = 1 + 2\n") == []
    body = "".join(f"    x{i} = a + b\n" for i in range(100))
    assert sites_of("def f(a, b):\n" + body) == []
    assert sites_of("def f(:\n") == []
    assert sites_of("def f(a):\n    return 'é' + a\n") == []


def test_a_function_gives_at_most_so_many_sites():
    body = "".join(f"    x{i} = a + b\n" for i in range(30))
    assert len(sites_of("def f(a, b):\n" + body)) == MAX_SITES_PER_FUNCTION


def test_the_same_seed_finds_the_same_sites():
    assert sites_of(CODE, 3) == sites_of(CODE, 3)


def test_a_site_survives_its_file():
    site = sites_of(CODE)[0]
    assert Site.from_dict(site.to_dict()) == site


# ---------------------------------------------------------------------------------------- packages


def source(**changes: str) -> Source:
    row = {
        "package": "shapes",
        "version": "1.0",
        "filename": "shapes-1.0.tar.gz",
        "sha256": "0" * 64,
        "license": "MIT",
        "role": "demo",
        "source": "src/shapes",
        "pythonpath": "",
    }
    return Source(**{**row, **changes}, tests=())


FILES = {
    "setup.py": TreeFile(REGULAR, b"x = 1 + 1\n"),
    "src/shapes/area.py": TreeFile(REGULAR, CODE.encode()),
    "src/shapes/link.py": TreeFile(SYMLINK, b"area.py"),
    "src/shapes/tests/test_area.py": TreeFile(REGULAR, CODE.encode()),
    "src/shapes/_vendor/other.py": TreeFile(REGULAR, CODE.encode()),
    "src/shapes/latin.py": TreeFile(REGULAR, "# é\n".encode("latin-1")),
    "src/shapes_too/area.py": TreeFile(REGULAR, CODE.encode()),
}


def test_tests_vendored_code_and_links_are_not_read():
    assert [path for path, _ in python_files(FILES, "src/shapes")] == ["src/shapes/area.py"]
    assert [path for path, _ in python_files(FILES, "setup.py")] == ["setup.py"]


def test_collect_keeps_the_limit_and_counts_what_is_excluded():
    every, dropped = collect(source(), FILES, 100, set())
    assert dropped == 0
    assert len(every) > 8
    assert len(collect(source(), FILES, 3, set())[0]) == 3
    line = every[0].fixed.strip()
    kept, dropped = collect(source(), FILES, 100, {line})
    assert dropped == len(every) - len(kept) > 0
    assert all(site.fixed.strip() != line for site in kept)


def test_short_lines_are_never_excluded(tmp_path: Path):
    lines = lines_of_package({"a.py": TreeFile(REGULAR, b"    pass\n    return a_long + name\n")}, "a.py")
    assert lines == {"return a_long + name"}
    tasks = tmp_path / "tasks.jsonl"
    write_jsonl(tasks, [{"fixed": "  if a:"}, {"fixed": "  if a_long < name:"}])
    assert lines_of_tasks(tasks) == {"if a_long < name:"}


def test_no_demonstration_package_is_a_task_package():
    roles: dict[str, set[str]] = {}
    for row in load_sources(ROOT / "assets/miniature/sources.tsv"):
        roles.setdefault(row.role, set()).add(row.package)
    assert len(roles["demo"]) >= 20
    assert not roles["demo"] & (roles["train"] | roles["heldout"])


# ----------------------------------------------------------------------------------------- drawing


def test_a_window_shows_the_fault_at_any_height_with_shifted_numbers():
    site = next(site for site in sites_of(CODE) if site.edit[:2] != (" or ", " and "))
    heights = set()
    for seed in range(60):
        task = place_window(site, random.Random(seed), shift=1000)
        assert task is not None
        assert task.first <= task.repair.line <= task.last
        assert task.lines[task.repair.line - task.first] == site.buggy
        assert task.repair.line == site.line + 1000
        assert len(task.lines) <= talk.WINDOW_LINES
        heights.add(task.repair.line - task.first)
    assert len(heights) > 1
    assert place_window(site, random.Random(0), shift=-1000) is None


def test_a_window_with_tabs_or_long_lines_is_refused():
    tabbed = sites_of("def f(a, b):\n\treturn a + b\n")[0]
    assert place_window(tabbed, random.Random(0)) is None
    long = sites_of(f"def f(a, b):\n    return a + b  # {'x' * 500}\n")[0]
    assert place_window(long, random.Random(0)) is None


def test_drawn_tasks_hold_their_repair_and_mostly_unknown_paths():
    demonstrations = Demonstrations(site for seed in range(20) for site in sites_of(CODE, seed))
    rng = random.Random(0)
    tasks = [demonstrations.draw(rng) for _ in range(400)]
    for task in tasks:
        assert task.repair in talk.candidate_edits(task.kind, task.first, task.lines)
        assert task.first >= 1
        assert task.path.endswith(".py")
    kinds = Counter(task.kind for task in tasks)
    assert set(kinds) == set(talk.KINDS)
    assert kinds["arith"] > kinds["bool"]
    assert len({task.path for task in tasks}) > 150
    assert "<|im_start|>assistant\n```bash\nsed -i '" in whole_conversation(tasks[0])


def test_noisy_edits_are_other_edits_of_the_window():
    task = EditTask("arith", "f", "a.py", 1, ("x = a + b - c",), Edit(1, " + ", " - "))
    rng = random.Random(0)
    edits = Counter(draw_edit(task, 0.5, rng) for _ in range(400))
    assert 150 < edits[task.repair] < 250
    assert set(edits) == {task.repair, Edit(1, " - ", " + ")}
    alone = EditTask("arith", "f", "a.py", 1, ("x = a + b",), Edit(1, " + ", " - "))
    assert {draw_edit(alone, 0.0, rng) for _ in range(5)} == {alone.repair}


def test_demonstrations_need_every_kind():
    with pytest.raises(UserError, match="no site of kind"):
        Demonstrations(site for site in sites_of(CODE) if site.kind == "cmp")
