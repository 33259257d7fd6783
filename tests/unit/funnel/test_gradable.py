"""Rows that the harness cannot grade, the table of profiles, and the scripts that make both."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smith_environment import ROOT, SMITH, needs_smith
from swe_smith_rows import IMAGE, load_script, make_row, write_shard

from lightning_smith.core.errors import UserError
from lightning_smith.core.files import read_json, read_jsonl
from lightning_smith.funnel.filters import gradable
from lightning_smith.funnel.filters.decisions import Decisions, decide, read_decisions, write_decisions
from lightning_smith.funnel.filters.gradable import Judgement, OddIds, judge, reasons, special_ids
from lightning_smith.funnel.ledger import funnel_rows, release_ids
from lightning_smith.grading.log_lines import (
    OWN_FORMS,
    PLAIN_ID,
    STATUS_WORDS,
    odd_reason,
    read_own,
    shadowing,
)
from lightning_smith.grading.open_profiles import profile_source
from lightning_smith.grading.profiles import Profile, read_profiles, release_repositories, write_profiles
from lightning_smith.release.columns import SCHEMA

REPO = "swesmith/acme__widget.0badcafe"
PROFILE = Profile(REPO, IMAGE, "python", "pytest", "pytest {files}", "own", OWN_FORMS)
FAST = settings(max_examples=60, deadline=None)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def odd(profile: Profile, test: str) -> str | None:
    return odd_reason(test, lambda log: read_own(log, (test,)), profile.line_forms)


def test_each_reason() -> None:
    rows = [
        make_row(1),
        make_row(2, repo="swesmith/new", image_name="x"),
        make_row(3, repo="swesmith/go", image_name="y"),
        make_row(5, PASS_TO_PASS=[]),
        make_row(6, PASS_TO_PASS=["t.py::b", "t.py::c[x"]),
        make_row(7, FAIL_TO_PASS=["t.py::p[a - b]"]),
        make_row(8, FAIL_TO_PASS=["t.py::p[a]", "t.py::p[a] - b]"]),
    ]
    profiles = {
        profile.key: profile
        for profile in (PROFILE, Profile("swesmith/new", "x"), Profile("swesmith/go", "y", "go"))
    }
    assert reasons(batch_of(rows), profiles, odd) == [
        None, "no_profile", "not_python", None, "odd_test_id", None, "odd_test_id",
    ]  # fmt: skip
    judged = judge(batch_of(rows), profiles, odd)
    assert judged[4] == Judgement("odd_test_id", "t.py::c[x", "its parameters are cut off")
    assert judged[6].test == "t.py::p[a] - b]"
    with pytest.raises(UserError, match=r"the table of profiles lacks swesmith/acme__widget.0badcafe with"):
        reasons(batch_of(rows), {}, odd)


def test_a_profile_whose_parser_reads_nothing_grades_nothing() -> None:
    deaf = Profile(REPO, IMAGE, "python", "nosetests", None, "deaf", ())
    assert reasons(batch_of([make_row(1)]), {deaf.key: deaf}, odd) == ["odd_test_id"]


def test_a_parser_is_asked_once_for_an_id() -> None:
    asked: list[str] = []

    class Source:
        def profile(self, repo: str, image_name: str) -> Profile:
            return PROFILE

        def parser(self, profile: Profile, known: Any) -> Any:
            asked.extend(known)
            return lambda log: read_own(log, known)

    rows = [make_row(number, FAIL_TO_PASS=["t.py::p[a b]", "t.py::p[a b]"]) for number in range(4)]
    odd_ids = OddIds(Source())
    assert reasons(batch_of(rows), {PROFILE.key: PROFILE}, odd_ids) == [None] * 4
    assert asked == ["t.py::p[a b]"]


texts = st.one_of(
    st.sampled_from(["t.py::test_PASSED", "t.py::test_a[XPASS]", "t.py::test_a[a - b]", "t.py::test_a[a"]),
    st.from_regex(PLAIN_ID, fullmatch=True),
    st.text(st.sampled_from("t.py::ab[] -PASSED\u00e9\n\u2028"), max_size=14),
    st.text(max_size=8),
)
id_lists = st.lists(texts, max_size=6)
releases = st.lists(st.tuples(id_lists, id_lists), max_size=6)


@FAST
@given(release=releases, skipped=st.integers(0, 2))
def test_special_ids_are_those_that_are_not_plain(release: list[Any], skipped: int) -> None:
    """Arrow's expressions say the same as Python's, in a slice of a batch as well."""
    rows = [make_row(i, FAIL_TO_PASS=f, PASS_TO_PASS=p) for i, (f, p) in enumerate(release)]
    batch = batch_of(rows).slice(skipped)
    lists = [batch.column("FAIL_TO_PASS"), batch.column("PASS_TO_PASS")]
    expected = [
        [t for t in fails + passes if not re.fullmatch(PLAIN_ID, t) or re.search(STATUS_WORDS, t)]
        for fails, passes in release[skipped:]
    ]
    assert special_ids(lists, batch.num_rows) == expected


@FAST
@given(release=releases)
def test_the_short_cut_for_plain_ids_changes_no_verdict(release: list[Any]) -> None:
    rows = [make_row(i, FAIL_TO_PASS=f, PASS_TO_PASS=p) for i, (f, p) in enumerate(release)]

    def expected(fails: list[str], passes: list[str]) -> str | None:
        tests = fails + passes
        bad = any(odd(PROFILE, test) is not None or shadowing(test, tests) is not None for test in tests)
        return "odd_test_id" if bad else None

    assert reasons(batch_of(rows), {PROFILE.key: PROFILE}, odd) == [expected(f, p) for f, p in release]


def test_it_has_rows_of_its_own_in_the_ledger(tmp_path: Path) -> None:
    rows = [make_row(1), make_row(3, FAIL_TO_PASS=["t.py::p[x"])]
    shard = write_shard(tmp_path / "a.parquet", rows)
    before = Decisions("test_count", {row["instance_id"]: None for row in rows})
    decisions = decide(
        gradable.NAME,
        [shard],
        gradable.COLUMNS,
        lambda batch: reasons(batch, {PROFILE.key: PROFILE}, odd),
        before,
    )
    ledger = funnel_rows(release_ids([shard]), [before, decisions])
    assert [(row.kept, row.dropped, row.reason) for row in ledger[2:]] == [
        (2, 0, "no_profile"), (2, 0, "not_python"), (1, 1, "odd_test_id"),
    ]  # fmt: skip


def test_the_table_of_profiles(tmp_path: Path) -> None:
    profiles = [PROFILE, Profile("swesmith/a", "b")]
    write_profiles(tmp_path / "profiles.json", profiles)
    assert read_profiles(tmp_path / "profiles.json") == {profile.key: profile for profile in profiles}
    assert [row["repo"] for row in read_json(tmp_path / "profiles.json")] == ["swesmith/a", REPO]
    write_profiles(tmp_path / "twice.json", [PROFILE, PROFILE])
    with pytest.raises(UserError, match=r"twice\.json has swesmith/acme__widget.0badcafe with .* twice"):
        read_profiles(tmp_path / "twice.json")
    for text in ('{"repo": "a"}', '[{"repo": "a"}]', "[1]", '"x"'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=r"bad\.json is no table of profiles"):
            read_profiles(tmp_path / "bad.json")


def test_the_repositories_of_a_release(tmp_path: Path) -> None:
    rows = [
        make_row(1, repo="b"),
        make_row(2, repo="a"),
        make_row(3, repo="b"),
        make_row(4, repo="b", image_name="i"),
    ]
    shard = write_shard(tmp_path / "a.parquet", rows)
    assert release_repositories([shard]) == [("a", IMAGE), ("b", "i"), ("b", IMAGE)]


def test_another_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"swesmith is not in this environment: .* --project envs/smith"):
        profile_source("smith")


def real_row(number: int, repo: str, **changes: Any) -> dict[str, Any]:
    key = repo.partition("/")[2]
    image = f"swebench/swesmith.x86_64.{key.replace('__', '_1776_')}".lower()
    return make_row(number, instance_id=f"{key}.pr_{number}", repo=repo, image_name=image, **changes)


@pytest.mark.e2e
@needs_smith
def test_the_scripts_with_swesmiths_registry(tmp_path: Path) -> None:
    """Real repository names and parsers: Python's common parser, its own parsers, Go, and one nobody knows."""
    moto, tornado = "swesmith/getmoto__moto.694ce1f4", "swesmith/tornadoweb__tornado.d5ac65c1"
    slugify, go = "swesmith/un33k__python-slugify.872b3750", "swesmith/gin-gonic__gin.3c12d2a8"
    rows = [
        real_row(1, moto, FAIL_TO_PASS=["tests/test_a.py::test_b[p2$$word]"]),
        real_row(2, moto, FAIL_TO_PASS=["tests/test_a.py::test_b[a - b]"]),
        real_row(3, tornado, FAIL_TO_PASS=["test_a (tornado.test.web_test.T)"], PASS_TO_PASS=[]),
        real_row(4, slugify, FAIL_TO_PASS=["test_a (__main__.T)"], PASS_TO_PASS=["test_b (__main__.T)"]),
        real_row(5, slugify, FAIL_TO_PASS=["test_a (__main__.T)"], PASS_TO_PASS=["test.py::test_b"]),
        real_row(6, go, FAIL_TO_PASS=["TestA"]),
        real_row(7, "swesmith/nobody__nothing.00000000"),
    ]
    shard = write_shard(tmp_path / "train-00000-of-00001.parquet", rows)
    write_decisions(
        tmp_path / "test_count.tsv", Decisions("test_count", {r["instance_id"]: None for r in rows})
    )
    shared = ["--shards", str(shard), "--source", "smith"]
    table, out, odd_ids = tmp_path / "profiles.json", tmp_path / "gradable.tsv", tmp_path / "odd.jsonl"

    def run(script: str, *flags: str) -> str:
        command = [str(SMITH), f"scripts/funnel/{script}.py", *shared, *flags]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    printed = run("list_profiles", "--out", str(table))
    assert "5 repositories: 3 python, 1 go, 1 without a profile" in printed
    printed = run(
        "filter_gradable",
        *("--previous", str(tmp_path / "test_count.tsv"), "--profiles", str(table)),
        *("--odd", str(odd_ids), "--out", str(out)),
    )
    assert "7 rows, 3 kept, 1 no_profile, 1 not_python, 2 odd_test_id" in printed
    found = read_decisions(out).reasons
    assert [found[row["instance_id"]] for row in rows] == [
        None, "odd_test_id", None, None, "odd_test_id", "not_python", "no_profile",
    ]  # fmt: skip
    named = {row["instance_id"]: row["test"] for row in read_jsonl(odd_ids)}
    assert named == {
        rows[1]["instance_id"]: "tests/test_a.py::test_b[a - b]",
        rows[4]["instance_id"]: "test.py::test_b",
    }

    profiles = {repo: profile for (repo, _), profile in read_profiles(table).items()}
    activate = "source /opt/miniconda3/bin/activate; conda activate testbed; "
    pytest_command = "pytest --disable-warnings --color=no --tb=no --verbose"
    assert profiles[moto] == Profile(
        repo=moto,
        image_name="swebench/swesmith.x86_64.getmoto_1776_moto.694ce1f4",
        language="python",
        test_command=activate + pytest_command,
        fail_to_pass_command=f"{activate}{pytest_command} {{files}}",
        log_parser="swesmith.profiles.python.PythonProfile.log_parser",
        line_forms=("verbose",),
        timeout_s=90.0,
        reference_timeout_s=900.0,
        min_testing=True,
        min_pregold=False,
        evaluation_sets=(),
    )
    assert profiles[tornado].line_forms == ("unittest_heading",)
    assert profiles[slugify].line_forms == ("unittest",)
    assert (profiles[go].language, profiles[go].test_command) == ("go", None)


def test_a_filter_without_its_table_says_so(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "a.parquet", [make_row(1)])
    flags = ["--shards", str(shard), "--source", str(tmp_path)]
    outputs = ["--odd", str(tmp_path / "o"), "--out", str(tmp_path / "gradable.tsv")]
    with pytest.raises(UserError, match="does not exist"):
        load_script("filter_gradable").main([*flags, *outputs, "--profiles", str(tmp_path / "profiles.json")])
    (tmp_path / "profiles.json").write_text(json.dumps([]))
    with pytest.raises(UserError, match="the table of profiles lacks"):
        load_script("filter_gradable").main([*flags, *outputs, "--profiles", str(tmp_path / "profiles.json")])
