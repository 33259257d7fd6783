"""config.yaml is the published experiment: every value has a source, and every published one its sentence.

The table assets/published/settings.tsv ties key, value and sentence together. A value that is changed in config.yaml
alone fails here, and so does a key without a source.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_smith.config.checks import active_recipes
from lightning_smith.config.recipes import VERL_NAMES

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "config.yaml").read_text()
CONFIG = yaml.safe_load(TEXT)
LINES = TEXT.splitlines()
SOURCES = ("AL-75", "AL-76", "AL-code", "others", "here")
TAG = re.compile(rf"\[({'|'.join(SOURCES)})\b[^\]]*\]")


def leaves(node: yaml.Node, path: tuple[str, ...], tag: str | None) -> Iterator[tuple[str, str | None]]:
    """Yield the dotted key of every value and its source, of the nearest section if it says none itself."""
    if not isinstance(node, yaml.MappingNode):
        yield ".".join(path), tag
        return
    for key, value in node.value:
        if key.value != "<<":
            yield from leaves(value, (*path, key.value), source(key.start_mark.line) or tag)


def source(line: int) -> str | None:
    """Return the source that a key's line names, or the lines of its comment that go on below."""
    comment = [LINES[line]]
    for text in LINES[line + 1 :]:
        if not re.match(r" {33,}#", text):
            break
        comment.append(text)
    found = TAG.search(" ".join(text.partition("# ")[2] for text in comment))
    return found[1] if found else None


TAGS = dict(leaves(yaml.compose(TEXT), (), None))


def value_of(config: Any, key: str) -> Any:
    """Return a value by its dotted key; verl's own names have dots themselves."""
    if not key:
        return config
    for name in sorted(config, key=len, reverse=True):
        if key == name or key.startswith(f"{name}."):
            return value_of(config[name], key[len(name) + 1 :])
    raise KeyError(key)


def read_table() -> dict[str, dict[str, str]]:
    with (ROOT / "assets/published/settings.tsv").open(encoding="utf-8", newline="") as file:
        return {row["key"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


TABLE = read_table()


def words(value: Any) -> list[str]:
    """Return what a sentence has to say for it to be about this value; nothing where the value is a name of ours."""
    if isinstance(value, list):
        return [word for part in value for word in words(part)]
    if isinstance(value, bool) or value is None:
        return [json.dumps(value)]
    return [f"{value:,}" if isinstance(value, int) else str(value)]


def unlike(config: Any) -> list[str]:
    """Keys whose value in `config` is not the table's."""
    return [key for key, row in TABLE.items() if value_of(config, key) != json.loads(row["value"])]


def test_every_value_says_where_it_comes_from() -> None:
    assert not [key for key, tag in TAGS.items() if tag is None]


def test_every_published_value_has_a_row_and_every_row_a_value() -> None:
    published = {key for key, tag in TAGS.items() if tag != "here"}
    assert published - set(TABLE) == set(), "published in config.yaml, without a sentence"
    assert set(TABLE) - published == set(), "with a sentence, and [here] in config.yaml or absent"
    assert {key: row["source"] for key, row in TABLE.items()} == {key: TAGS[key] for key in TABLE}


def test_every_published_value_is_the_one_of_its_sentence() -> None:
    assert unlike(CONFIG) == []
    ours = ("backends.", "probe.policy", "policies.dense.kind", "recipes.dense.policy")
    for key, row in TABLE.items():
        assert row["place"] and row["sentence"].endswith("."), key
        missing = [word for word in words(json.loads(row["value"])) if word not in row["sentence"]]
        assert key.startswith(ours) or not missing, (key, missing)


@pytest.mark.parametrize(
    ("key", "written", "other"),
    [
        ("release.empty_statements", "18033", "18034"),
        ("filters.test_count.limit", "200", "201"),
        ("probe.samples", "4", "8"),
        ("selection.all_failed_sample", "1000", "999"),
        ("selection.validation_tasks", "400", "500"),
        ("recipes.dense.clip_high", "0.28", "0.2"),
        ("recipes.moe.rollout_correction.threshold", "2.0", "5.0"),
    ],
)
def test_a_changed_value_is_found(key: str, written: str, other: str) -> None:
    """As an edit of config.yaml would be."""
    name = key.rpartition(".")[2]
    changed, edits = re.subn(rf"(\b{name}: ){re.escape(written)}\b", rf"\g<1>{other}", TEXT)
    assert edits and key in unlike(yaml.safe_load(changed))


def test_what_verl_is_told_twice_is_told_once() -> None:
    named = {verl for names in VERL_NAMES.values() for verl in names}
    sections = [CONFIG["verl"], *(recipe["verl"] for recipe in active_recipes(CONFIG).values())]
    assert not [key for section in sections for key in section if key in named]
    recipe_keys = {name for name in VERL_NAMES if "." not in name}
    assert recipe_keys <= set(CONFIG["recipes"]["dense"])
