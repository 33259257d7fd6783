"""The miniature's tasks as a release, as an evaluation set and as an image, from one synthetic package."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from swe_smith_rows import load_script

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import sha256_file
from lightning_smith.core.git import git
from lightning_smith.miniature.tasks.release import EVALUATION_COLUMNS, eval_script, is_readable_id
from lightning_smith.miniature.tasks.table import SOURCE_COLUMNS
from lightning_smith.release.columns import check_schema
from lightning_smith.repositories.local import LocalImage

CORE = (
    "def add(a, b):\n    # na\u00efve \u2028 sum\n    return a + b\n\n\ndef less(a, b):\n    return a < b\n"
)
TESTS = {
    "tests/test_add.py": "from widget.core import add\n\ndef test_add():\n    assert add(2, 1) == 3\n",
    "tests/test_less.py": "from widget.core import less\n\ndef test_less():\n    assert less(1, 2)\n"
    "\ndef test_true():\n    assert True\n",
}
IDS = {
    "tests/test_add.py": ["tests/test_add.py::test_add"],
    "tests/test_less.py": ["tests/test_less.py::test_less", "tests/test_less.py::test_true"],
}


@dataclass(frozen=True)
class Assets:
    """What the scripts are given."""

    root: Path
    sources: Path
    tasks: Path
    sdists: Path

    @property
    def flags(self) -> list[str]:
        return ["--tasks", str(self.tasks), "--sources", str(self.sources)]


def task(package: str, key: str, number: int, **changes: Any) -> dict[str, Any]:
    """A task that breaks `add`, or `less` if the number is odd."""
    odd = number % 2 == 1
    test_file = "tests/test_less.py" if odd else "tests/test_add.py"
    row = {
        "instance_id": f"{key}.func_pm_op_change__{number:08x}",
        "package": package,
        "path": "src/widget/core.py",
        "entity": "less" if odd else "add",
        "kind": "cmp" if odd else "arith",
        "modifier": "func_pm_op_change",
        "line": 7 if odd else 3,
        "fixed": "    return a < b" if odd else "    return a + b",
        "buggy": "    return a > b" if odd else "    return a - b",
        "window": [1, 7],
        "problem_statement": f"number {number} is broken",
        "test_files": [test_file, "tests/test_less.py"] if not odd else [test_file],
        "FAIL_TO_PASS": IDS[test_file][:1],
    }
    return {**row, **changes}


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    root = tmp_path_factory.mktemp("as sets é")
    lines = ["\t".join(SOURCE_COLUMNS)]
    tables: dict[str, list[dict[str, Any]]] = {"train": [], "heldout": []}
    for package, role in (("widget", "train"), ("gadget", "heldout")):
        path = root / "sdists" / f"{package}-1.0.tar.gz"
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w:gz") as archive:
            for name, text in {"src/widget/core.py": CORE, "src/widget/__init__.py": "", **TESTS}.items():
                member = tarfile.TarInfo(f"{package}-1.0/{name}")
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        digest = sha256_file(path)
        row = (package, "1.0", path.name, digest, "MIT", role, "src/widget", "tests/test_*.py", "src")
        lines.append("\t".join(row))
        key = f"pypi__{package}.{digest[:8]}"
        tables[role] = [task(package, key, number) for number in range(7)]
        tables[role][1]["problem_statement"] = None
        tables[role][2]["problem_statement"] = ""
        tables[role][3]["branch"] = False
    (root / "sources.tsv").write_text("\n".join(lines) + "\n")
    (root / "tasks").mkdir()
    for role, rows in tables.items():
        (root / "tasks" / f"{role}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "tasks" / "tests.json").write_text(json.dumps({"widget": IDS, "gadget": IDS}))
    return Assets(root, root / "sources.tsv", root / "tasks", root / "sdists")


def build(assets: Assets, out: Path) -> Path:
    load_script("build_release").main([*assets.flags, "--sdists", str(assets.sdists), "--out", str(out)])
    return out


def build_image(assets: Assets, out: Path, package: str = "widget") -> LocalImage:
    sdist = assets.sdists / f"{package}-1.0.tar.gz"
    flags = [
        "--package",
        package,
        "--sdist",
        str(sdist),
        "--testbed-python",
        sys.executable,
        "--out",
        str(out),
    ]
    load_script("build_image").main([*assets.flags, *flags])
    return LocalImage.open(out)


def test_the_release_has_the_shape_of_the_hub(assets: Assets, tmp_path: Path) -> None:
    hub = build(assets, tmp_path / "hub")
    shards = sorted((hub / "data").iterdir())
    assert [path.name for path in shards] == [f"train-0000{i}-of-00003.parquet" for i in range(3)]
    rows = []
    for shard in shards:
        check_schema(shard)
        rows += pq.read_table(shard).to_pylist()
    assert [pq.read_metadata(shard).num_rows for shard in shards] == [2, 2, 3]
    assert [row["instance_id"] for row in rows] == sorted(row["instance_id"] for row in rows)
    assert {row["repo"] for row in rows} == {f"swesmith/{rows[0]['instance_id'].rsplit('.', 1)[0]}"}
    assert rows[0]["image_name"].startswith("swesmith/swesmith.x86_64.pypi_1776_widget.")
    assert [row["problem_statement"] for row in rows[:3]] == ["number 0 is broken", None, ""]
    assert rows[0]["FAIL_TO_PASS"] == ["tests/test_add.py::test_add"]
    assert rows[0]["PASS_TO_PASS"] == ["tests/test_less.py::test_less", "tests/test_less.py::test_true"]
    sums = [line.split("  ") for line in (hub / "SHA256SUMS").read_text().splitlines()]
    assert sums == [[sha256_file(shard), f"data/{shard.name}"] for shard in shards]


def test_releases_and_held_out_sets_have_the_same_bytes_every_time(assets: Assets, tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(assets, tmp_path / name)
        flags = ["--sdists", str(assets.sdists), "--out", str(tmp_path / name / "heldout.parquet")]
        load_script("build_heldout").main([*assets.flags, *flags])
    files = [
        {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "one", tmp_path / "two")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == 5


def test_the_bug_patch_makes_the_branch_and_its_reverse_repairs_it(assets: Assets, tmp_path: Path) -> None:
    image = build_image(assets, tmp_path / "image")
    rows = pq.read_table(build(assets, tmp_path / "hub") / "data").to_pylist()
    missing = {row["instance_id"] for row in rows} - image.branches()
    assert missing == {row["instance_id"] for row in rows if row["instance_id"].endswith("__00000003")}
    for row in rows:
        if row["instance_id"] in missing:
            continue
        tree = tmp_path / row["instance_id"]
        image.checkout("main", tree, pyc=False)
        apply = ["apply", "--whitespace=nowarn"]
        git(tree / ".git", "init", "--quiet", work_tree=tree)
        git(tree / ".git", *apply, "-", work_tree=tree, stdin=row["patch"].encode())
        broken = (tree / "src/widget/core.py").read_bytes()
        assert broken != CORE.encode()
        assert broken == image.file_at(f"{row['instance_id']}~1", "src/widget/core.py")
        git(tree / ".git", *apply, "--reverse", "-", work_tree=tree, stdin=row["patch"].encode())
        assert (tree / "src/widget/core.py").read_bytes() == CORE.encode()
        removed = {change.path for change in image.changes(row["instance_id"]) if change.blob is None}
        assert removed == {test_id.split("::")[0] for test_id in row["FAIL_TO_PASS"]}


def test_the_held_out_set_has_the_columns_of_swebench(assets: Assets, tmp_path: Path) -> None:
    out = tmp_path / "heldout.parquet"
    load_script("build_heldout").main([*assets.flags, "--sdists", str(assets.sdists), "--out", str(out)])
    table = pq.read_table(out)
    assert tuple(table.schema.names) == EVALUATION_COLUMNS
    assert len(EVALUATION_COLUMNS) == 17
    assert {str(field.type) for field in table.schema} == {"string"}
    assert all(column.null_count == 0 for column in table.columns)
    image = build_image(assets, tmp_path / "image", "gadget")
    row = table.to_pylist()[0]
    assert row["image"] == image.image_name
    assert json.loads(row["FAIL_TO_PASS"]) == ["tests/test_add.py::test_add"]
    assert len(json.loads(row["PASS_TO_PASS"])) == 2
    tree = tmp_path / "tree"
    image.checkout(row["base_commit"], tree)
    assert (tree / "tests/test_add.py").exists()
    git(tree / ".git", "init", "--quiet", work_tree=tree)
    git(tree / ".git", "apply", "-", work_tree=tree, stdin=row["patch"].encode())
    assert (tree / "src/widget/core.py").read_bytes() == CORE.encode()


def test_the_eval_script_runs_the_tests_between_its_marks(assets: Assets, tmp_path: Path) -> None:
    """Run by bash with the testbed's path replaced: markers, the tests' lines, and their exit status."""
    image = build_image(assets, tmp_path / "image")
    script = eval_script(["tests/test_add.py", "tests/test_less.py"], image.pythonpath)
    instance_id = min(image.branches())
    for revision, status in (("main", "PASSED"), (f"{instance_id}~1", "FAILED")):
        tree = tmp_path / revision.replace("~", "_")
        image.checkout(revision, tree)
        body = script.replace("/testbed", str(tree))
        done = subprocess.run(
            ["bash", "-c", body + "echo done\n"],
            env={
                "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                "PY_COLORS": "1",
                "FORCE_COLOR": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
        inner = done.stdout.split("+ : '>>>>> Start Test Output'")[1].split("+ : '>>>>> End Test Output'")[0]
        assert f"\n{status} tests/test_add.py::test_add" in inner
        assert "\nPASSED tests/test_less.py::test_true" in inner
        assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("test_id", "readable"),
    [
        ("t.py::a", True),
        ("t.py::a[one two]", True),
        ("t.py::a[\\u2028]", True),
        ("t.py::a[x  y]", False),
        ("t.py::a[x - y]", False),
        ("t.py::a[5m]", False),
        ("t.py::a[\x1b]", False),
        ("t.py::a[\u00a0]", False),
    ],
)
def test_ids_that_the_official_reader_gives_back(test_id: str, readable: bool) -> None:
    assert is_readable_id(test_id) is readable


def test_what_does_not_fit_together_is_told(assets: Assets, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "tests.json").write_text(json.dumps({"widget": {"tests/test_add.py": ["a[x  y]"]}}))
    digest = hashlib.sha256((assets.sdists / "widget-1.0.tar.gz").read_bytes()).hexdigest()
    good = task("widget", f"pypi__widget.{digest[:8]}", 0, test_files=["tests/test_add.py"])
    good["FAIL_TO_PASS"] = ["a[x  y]"]
    flags = ["--tasks", str(folder), "--sources", str(assets.sources), "--sdists", str(assets.sdists)]
    for role, script, changes, message in [
        ("train", "build_release", {"fixed": "    return a * b"}, r"core\.py line 3 does not read"),
        ("train", "build_release", {"path": "src/none.py"}, r"breaks src/none\.py, which its sdist lacks"),
        ("heldout", "build_heldout", {}, "which swebench cannot read from a log"),
        ("train", "build_release", {"package": "none"}, "which tests.json lacks for none"),
    ]:
        (folder / f"{role}.jsonl").write_text(json.dumps({**good, **changes}) + "\n")
        with pytest.raises(UserError, match=message):
            load_script(script).main([*flags, "--out", str(tmp_path / "out")])
    with pytest.raises(UserError, match="has no package 'nothing'"):
        build_image(assets, tmp_path / "image", "nothing")
