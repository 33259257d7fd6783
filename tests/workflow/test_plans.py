"""The workflow as a user sees it: targets, plans under every profile, refusals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from checkout import copy_checkout
from dry_runs import dry_run

ROOT = Path(__file__).parents[2]
PROFILES = ("mini", "k8s", "b200")
TARGETS = (
    "all", "prepare_data", "probe", "train_dense", "train_moe", "evaluate_verified", "results_table", "data_table",
    "figures", "warm_start", "make_tasks",
)  # fmt: skip
IMAGE_TARGETS = ("prepare_images", "prepare_verified_images", "import_images")


def snakemake(
    *arguments: str, cwd: Path, timeout_s: float = 120, **environment: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fresh clone holds (committed files), without results of earlier runs."""
    return copy_checkout(tmp_path_factory.mktemp("clone") / "repo")


PLANS = [
    *(("mini", target) for target in TARGETS),
    *(("k8s", target) for target in (*TARGETS, *IMAGE_TARGETS)),
    *((profile, target) for profile in ("b200", None) for target in ("all", "train_moe")),
]


@pytest.mark.parametrize(("profile", "target"), PLANS)
def test_every_target_has_a_plan(checkout: Path, tmp_path: Path, profile: str | None, target: str) -> None:
    arguments = ["--profile", profile] if profile else []
    code, said = dry_run(*arguments, "--quiet", "rules", "--", target, cwd=checkout, log=tmp_path / "log")
    assert code == 0, said[-2000:]


def test_filters_that_are_switched_on_are_in_the_plan_and_others_are_not(checkout: Path) -> None:
    def planned(*configs: str) -> set[str]:
        files = ["--configfile", "config/mini.yaml", *configs]
        plan = snakemake(
            "--profile", "mini", *files, "-n", "--quiet", "host", "--", "prepare_data", cwd=checkout
        )
        assert plan.returncode == 0, plan.stderr[-2000:]
        return set(re.findall(r"^(filter_\w+) ", plan.stdout + plan.stderr, re.M))

    always = {"filter_statement", "filter_branch", "filter_test_count"}
    always |= {"filter_fail_to_pass", "filter_bug_in_tests"}
    assert planned() == always
    row_filters = {"filter_overlap", "filter_gradable"}
    assert planned("tests/data/tiny.yaml") == always | row_filters
    assert planned("tests/data/certified.yaml") == always | row_filters | {"filter_validated"}


@pytest.mark.parametrize(
    ("backends", "release", "environments"),
    [
        ({"images": "local"}, {}, {"testbed"}),
        ({"images": "docker", "tests": "smith"}, {"folder": "{hub}"}, {"smith"}),
    ],
)
def test_certified_filters_have_a_plan_for_each_kind_of_images(
    checkout: Path, tmp_path: Path, backends: dict[str, str], release: dict[str, str], environments: set[str]
) -> None:
    """SWE-smith's images need its registry of profiles, the miniature's say themselves how they are tested."""
    (tmp_path / "SHA256SUMS").touch()
    release = {key: value.format(hub=tmp_path) for key, value in release.items()}
    overlay = {"backends": backends, "release": release, "validation": {"parts": 3}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(overlay))
    files = ["--configfile", "config/mini.yaml", "tests/data/certified.yaml", str(tmp_path / "x.yaml")]
    plan = snakemake("--profile", "mini", *files, "-n", "--", "prepare_data", cwd=checkout)
    assert plan.returncode == 0, plan.stderr[-2000:]
    text = plan.stdout + plan.stderr
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", text, re.M))
    expected = {"list_profiles": "1", "filter_gradable": "1", "validate_tasks": "3", "filter_validated": "1"}
    assert {name: jobs.get(name) for name in expected} == expected
    assert set(re.findall(r"environment (\w+): installing", text)) == environments


def test_the_published_configuration_certifies_nothing(checkout: Path) -> None:
    plan = snakemake("--profile", "k8s", "-n", "--quiet", "host", "--", "prepare_data", cwd=checkout)
    assert plan.returncode == 0, plan.stderr[-2000:]
    assert not re.search("gradable|validate|list_profiles", plan.stdout + plan.stderr)


def test_the_warm_start_fetches_what_its_demonstrations_are_made_from(checkout: Path) -> None:
    """Held-out packages as well: no demonstration shows a line of theirs."""
    plan = snakemake("--profile", "mini", "-n", "--quiet", "rules", "--", "warm_start", cwd=checkout)
    rows = (ROOT / "assets/miniature/sources.tsv").read_text().splitlines()
    roles = [row.split("\t")[5] for row in rows[1:]]
    fetched = re.search(r"^fetch_sdist +(\d+)$", plan.stdout + plan.stderr, re.M)
    assert fetched is not None
    assert int(fetched[1]) == roles.count("demo") + roles.count("heldout") == 31


def test_every_public_target_is_listed_with_a_sentence(checkout: Path) -> None:
    listing = snakemake("--list-target-rules", cwd=checkout)
    assert listing.returncode == 0
    for target in (*TARGETS, *IMAGE_TARGETS):
        assert re.search(rf"^{target}$|^{target}\s", listing.stdout + listing.stderr, re.M), target


def test_no_key_of_the_default_profile_is_set_by_another() -> None:
    default = yaml.safe_load((ROOT / "profiles/default/profile.yaml").read_text())
    for profile in PROFILES:
        other = yaml.safe_load((ROOT / "profiles" / profile / "profile.yaml").read_text()) or {}
        assert not set(default) & set(other), f"profiles/default would override {profile}"


def test_the_miniature_maps_every_rule_of_another_machine_to_the_laptop() -> None:
    mapped = yaml.safe_load((ROOT / "profiles/mini/profile.yaml").read_text())["set-resources"]
    text = "\n".join(path.read_text() for path in sorted((ROOT / "rules").glob("*.smk")))
    rule = r"^(?:rule|checkpoint) (\w+):(?:(?!^(?:rule|checkpoint) ).)*?machine=\"[AB]\""
    needing = re.findall(rule, text, re.M | re.S)
    assert set(needing) == set(mapped)
    assert all(value == {"machine": "laptop"} for value in mapped.values())


def test_training_refuses_a_machine_without_gpus_in_one_sentence(checkout: Path) -> None:
    run = snakemake("train_moe", cwd=checkout, PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert run.returncode == 1
    assert "must run on machine" in run.stderr
    assert "snakemake --profile" in run.stderr
    assert "Traceback" not in run.stderr


WITHOUT_NAMESPACES = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'


def test_a_machine_without_sandbox_is_refused_before_the_first_job(checkout: Path) -> None:
    inside = ["unshare", "--user", "--map-root-user", "sh", "-c", WITHOUT_NAMESPACES, "sh"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a user namespace whose limits can be set")
    command = [*inside, sys.executable, "-m", "snakemake", "--profile", "mini"]
    run = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1
    (error,) = (line for line in run.stderr.splitlines() if line.startswith("error: "))
    assert "the sandbox did not start" in error and "sysctl user.max_user_namespaces" in error
    assert "Traceback" not in run.stderr
    assert not (checkout / "work").exists()


def test_an_unknown_key_is_refused_in_one_sentence(checkout: Path) -> None:
    run = snakemake("--profile", "mini", "-n", "--config", "colour=red", cwd=checkout)
    assert run.returncode == 1
    assert "error: configuration key" in run.stderr
    assert "colour" in run.stderr
    assert "Traceback" not in run.stderr


def test_rule_files_are_short() -> None:
    for path in sorted((ROOT / "rules").glob("*.smk")):
        assert len(path.read_text().splitlines()) <= 150, path


def test_no_rule_has_an_ancient_input() -> None:
    """Snakemake 9.27 leaves a job out of the plan, missing output or not, if such an input is to be made again."""
    for path in sorted((ROOT / "rules").glob("*.smk")):
        assert "ancient(" not in path.read_text(), path


LINTED_ON_PURPOSE = (
    "Specify a conda environment or container",  # environments are locked by uv
    "Mixed rules and functions",  # an input function stands beside its rule
    "is a prefix of input or output file",  # a folder that several files of a rule lie in
    "Environment variable PATH used",  # it is set, not read
    "Environment variable LIGHTNING_SMITH_PYTHON used",
)


def test_lint_finds_nothing_new(checkout: Path) -> None:
    lint = snakemake("--profile", "mini", "--lint", cwd=checkout)
    found = set(re.findall(r"^    \* (.+?):?$", lint.stdout + lint.stderr, re.M))
    assert found, lint.stderr[-2000:]
    assert not [line for line in found if not any(text in line for text in LINTED_ON_PURPOSE)]
