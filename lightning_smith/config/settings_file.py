"""The file with a stage's settings: written by the workflow, named by its content, read by a script.

    path = write_settings(Path("work/mini/settings"), stage)        # .../probe_stage-1f0c9a4e.json
    parser = settings_parser(__doc__, ProbeStage)
    stage = read_settings(parser.parse_args(), ProbeStage)

A change of a setting gives another name, which is a parameter of the rule. What changes no result, such as how many
tests run at a time, is not in the file.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.check import adapter, checked
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError
from lightning_smith.core.files import dump_json, hash_json, read_json, write_atomic
from lightning_smith.core.paths import REPOSITORY

_CHANGES_NO_RESULT = {"agent": ("gradings",)}
_DIGITS = 8


def _legal_keys(section: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without those that no key gives."""
    found = {}
    for field in fields(section):
        inner = getattr(section, field.name)
        if field.init:
            value = values[field.name]
            found[field.name] = _legal_keys(inner, value) if is_dataclass(inner) else value
    return found


class SettingsFiles:
    """The files of a workflow: none is written by a plan, all before the first job, and later ones at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._later: dict[Path, str] | None = {}

    def path(self, stage: Any) -> str:
        """Return the path of the file of a stage."""
        path, text = _file(self._folder, stage)
        if self._later is None:
            _write(path, text)
        else:
            self._later[path] = text
        return str(path)

    def write(self) -> None:
        """Write the files whose paths were asked for."""
        later, self._later = self._later or {}, None
        for path, text in later.items():
            _write(path, text)


def write_settings(folder: Path, stage: Any) -> str:
    """Write the settings of a stage below `folder`, if they are not there; return the path."""
    path, text = _file(folder, stage)
    _write(path, text)
    return str(path)


def _write(path: Path, text: str) -> None:
    if not path.exists():
        write_atomic(path, text)


def _file(folder: Path, stage: Any) -> tuple[Path, str]:
    values = _legal_keys(stage, adapter(type(stage)).dump_python(stage, mode="json"))
    for section, names in _CHANGES_NO_RESULT.items():
        if isinstance(values.get(section), dict):
            values[section] = {key: value for key, value in values[section].items() if key not in names}
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(stage).__name__).lower()
    return folder / f"{name}-{hash_json(values)[:_DIGITS]}.json", dump_json(values, indent=1) + "\n"


def settings_parser(description: str | None, kind: Any, **options: Any) -> argparse.ArgumentParser:
    """Return a parser of a stage's script, whose --help lists every setting of the stage."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=_listing(kind),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **options,
    )
    parser.add_argument(
        "--settings",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON of the settings below; the workflow writes it below {work}/settings",
    )
    parser.add_argument(
        "--set",
        type=_assignment,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another value of one of them, in YAML; may be given several times",
    )
    if get_type_hints(kind).get("agent") is AgentSettings:
        parser.add_argument(
            "--gradings",
            type=whole(1),
            default=2,
            help="test runs at a time on this machine (default %(default)s)",
        )
    return parser


def read_settings(args: argparse.Namespace, kind: Any) -> Any:
    """Return the file's settings with those of the command line over them.

    Raise UserError, naming file and key, if the file is absent or not of such a stage.
    """

    def overlay(values: dict[str, Any]) -> None:
        if isinstance(values.get("agent"), dict):
            values["agent"] = {"gradings": args.gradings} | values["agent"]
        for path, value in args.set:
            _put(values, path, value)

    return read_settings_file(args.settings, kind, overlay)


def read_settings_file(path: Path, kind: Any, overlay: Callable[[dict[str, Any]], None] | None = None) -> Any:
    """Return the settings of a file, which `overlay` may change before they are checked."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} holds no settings: run the rule that writes it, or write an object")
    if overlay is not None:
        overlay(values)
    try:
        return checked(kind, values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _assignment(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is no KEY=VALUE, as probe.samples=2")
    try:
        return key.split("."), yaml.safe_load(value)
    except yaml.YAMLError:
        raise argparse.ArgumentTypeError(f"the value of {text!r} is no YAML") from None


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UserError(f"--set {'.'.join(path)}: {name} has no keys of its own")
        values = inner
    values[path[-1]] = value


def _listing(kind: Any) -> str:
    """Return a line for each setting: key, what is legal, what it is, and the value in config.yaml if it has one."""
    published = yaml.safe_load((REPOSITORY / "config.yaml").read_text())
    return "\n".join(["settings:", *_lines(kind, adapter(kind).json_schema(), (), published)])


def _lines(kind: Any, schema: dict[str, Any], path: tuple[str, ...], published: Any) -> list[str]:
    lines: list[str] = []
    definitions = schema.get("$defs", {})
    section = schema
    for name in path:
        section = _resolved(section["properties"][name], definitions)
    for field in fields(kind):
        if not field.init:
            continue
        hint, key = get_type_hints(kind)[field.name], (*path, field.name)
        known = published.get(field.name, MISSING) if isinstance(published, dict) else MISSING
        if is_dataclass(hint):
            lines += _lines(hint, schema, key, known)
            continue
        said = section["properties"][field.name]
        default = "" if known is MISSING else f" (config.yaml: {_short(known)})"
        lines.append(
            f"  {'.'.join(key)}: {_legal(said, definitions)}; {said.get('description', '')}{default}"
        )
    return lines


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def _legal(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return what a value may be, in a few words."""
    schema = _resolved(schema, definitions)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_legal(each, definitions) for each in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " | ".join(map(str, schema.get("enum") or [schema["const"]]))
    bounds = [
        f"{word} {schema[name]:g}"
        for name, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if name in schema
    ]
    return " ".join([schema.get("type", "value"), *bounds])


def _short(value: Any) -> str:
    text = dump_json(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
