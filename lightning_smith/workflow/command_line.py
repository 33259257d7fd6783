"""What a command line of Snakemake asks for, checked before Snakemake acts on it, and its values read as YAML.

profiles/default/profile.yaml calls `check_arguments`: a profile is the first file of ours that Snakemake reads.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from lightning_smith.core.errors import UserError, exit_on_user_error


class _Loader(yaml.SafeLoader):
    """Reads `1e-4` as a number, as YAML 1.2 does; PyYAML wants a point in it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def check_arguments(args: Namespace) -> None:
    """End the process with one sentence if Snakemake's arguments are refused; lists of rules write nothing."""
    listing = args.list_rules or args.list_target_rules
    with exit_on_user_error():
        refuse_command_line(args.config or (), args.configfile, None if listing else args.directory or Path())


def refuse_command_line(config: Iterable[str], configfiles: Iterable[Path], folder: Path | None) -> None:
    """Raise UserError for what Snakemake would answer with a traceback.

    `config` are the entries of --config, `configfiles` those of --configfile, `folder` is what the run
    writes to.
    """
    for entry in config:
        key, equals, value = entry.partition("=")
        if not equals:
            raise UserError(
                f"--config {entry} is not KEY=VALUE: write targets after `--`, as in "
                f"`uv run snakemake --config KEY=VALUE -- {entry}`"
            )
        if "." in key.strip("."):
            raise UserError(f"--config {entry} has a dotted key: write --config '{_nested(key, value)}'")
        if not re.fullmatch(r"[a-zA-Z_]\w*", key):
            raise UserError(
                f"--config {entry} begins with no key: write one of config.yaml, as in --config probe=..."
            )
    for file in configfiles:
        read_configfile(file)
    if folder and not (folder / "Snakefile").is_file():
        raise UserError(
            f"--directory {folder} is no checkout of this repository, where a run finds its scripts: leave --directory "
            "out, and say with --config 'dirs={data: DATA, work: WORK, results: RESULTS}' where files go"
        )
    if folder and not os.access(folder, os.W_OK):
        raise UserError(
            f"the folder {folder.resolve()} cannot be written: make it writable, or run the workflow in a copy of "
            "your own"
        )


def read_configfile(file: Path) -> dict[str, Any]:
    """Return a file of --configfile as it is written. Raise UserError if it is absent, no YAML, or no mapping."""
    if not file.exists():
        hint = (
            "correct its name"
            if file.suffix
            else f"write targets after `--`, as in `uv run snakemake --configfile FILE -- {file}`"
        )
        raise UserError(f"the configuration file {file} does not exist in {Path.cwd()}: {hint}")
    try:
        content = yaml.safe_load(file.read_bytes())
    except OSError as error:
        raise UserError(
            f"the configuration file {file} cannot be read ({error.strerror}): name another"
        ) from None
    except yaml.YAMLError as error:
        raise UserError(
            f"the configuration file {file} is not YAML: {_place_of(error)}correct it there"
        ) from None
    if not isinstance(content, dict):
        raise UserError(
            f"the configuration file {file} has no keys: write it as config/mini.yaml is, `KEY: VALUE` in each line"
        )
    return content


def _place_of(error: yaml.YAMLError) -> str:
    """`line 3, expected ',' or ']': `; a clause where and why reading broke off."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None:
        return f"{getattr(error, 'reason', error)}; "
    return f"line {mark.line + 1}, {problem}; "


def _nested(key: str, value: str) -> str:
    """`a.b.c=1` in the form that --config reads: `a={b: {c: 1}}`."""
    top, *inner = key.split(".")
    for name in reversed(inner):
        value = f"{{{name}: {value}}}"
    return f"{top}={value}"


def typed_flags(configfiles: Iterable[Path], config: Iterable[str] | None) -> tuple[str, ...]:
    """--configfile and --config as they were typed, for a command that is to do the same elsewhere."""
    files, entries = [os.path.relpath(file) for file in configfiles], list(config or ())
    return (*(["--configfile", *files] if files else []), *(["--config", *entries] if entries else []))


def config_values(entries: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the entries of --config, `KEY=YAML`, in their order. Raise UserError for one that is no YAML.

    Snakemake itself leaves numbers and booleans below the first level as text.
    """
    for entry in entries:
        key, _, text = entry.partition("=")
        try:
            yield {key: yaml.load(text.strip("'\""), Loader=_Loader)}
        except yaml.YAMLError:
            raise UserError(
                f"--config {entry} is not YAML: write it as --config '{key}={{name: value}}'"
            ) from None
