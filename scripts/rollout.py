"""Run one task by hand and print the conversation as it goes, then the patch and the record of the rollout.

The policy is an OpenAI chat endpoint, or a file of scripted replies: a JSON list of strings. Limits and wording are
the section `agent` of config.yaml, with --configfile and then --set laid over it. After `make mini`, for example:

    printf '%s' '["```bash\\nls\\n```", "```bash\\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\n```"]' > replies.json
    uv run python scripts/rollout.py --configfile config/mini.yaml --tasks data/mini/val_dataset_filtered.jsonl \\
        --images work/mini/images --scripted replies.json

Without --task the first task of the file is run. The exit status is 1 if the rollout has no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from lightning_smith.agent.chat import ChatModel, Message, Model, ScriptedModel
from lightning_smith.agent.rollout import Request, Rollout, Stage, run_rollout
from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.stage import StageSettings
from lightning_smith.core.arguments import whole
from lightning_smith.core.errors import UserError, exit_without_reader, run_script
from lightning_smith.core.files import read_jsonl
from lightning_smith.core.paths import REPOSITORY
from lightning_smith.workflow.command_line import read_configfile

INTERRUPTED = "interrupted: the rollout is given up, nothing of it is left running"


def json_object(text: str) -> dict[str, Any]:
    """Return an argument that is a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'no JSON object such as {{"max_turns": 10}}: {text}')
    return value


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", metavar="ID", help="instance id (default: the first of --tasks)")
    add("--tasks", type=Path, required=True, metavar="FILE", help="JSON lines of SWE-smith rows")
    add("--images", type=Path, required=True, metavar="FOLDER", help="local images, such as work/mini/images")
    policy = parser.add_mutually_exclusive_group(required=True)
    policy.add_argument(
        "--model-url",
        metavar="URL",
        help="base URL of an OpenAI endpoint, such as http://127.0.0.1:8000/v1; its key is OPENAI_API_KEY, if set",
    )
    policy.add_argument("--scripted", type=Path, metavar="FILE", help="JSON list of replies")
    add("--model", default="policy", help="name of the model in requests (default %(default)s)")
    add("--seed", type=whole(0), default=0, help="of the requests (default %(default)s)")
    add(
        "--sample",
        type=whole(0),
        default=0,
        help="number of the rollout, for its record (default %(default)s)",
    )
    add("--configfile", type=Path, action="append", default=[], metavar="FILE", help="laid over config.yaml")
    add(
        "--set",
        type=json_object,
        default={},
        metavar="JSON",
        help='laid over the section `agent`, such as \'{"max_turns": 10, "thinking": null}\'; null for thinking leaves '
        "the field out, for endpoints that refuse it",
    )
    add("--request", type=json_object, default={}, metavar="JSON", help="more fields of each request")
    add("--no-grade", action="store_true", help="do not run the tests")
    add("--testbed-python", type=Path, help="interpreter of the tests (default: that of envs/testbed)")
    add("--grades", type=Path, help="store of test runs (default: grades beside the images)")
    add("--trajectories", type=Path, help="folder to write the trajectory to (default: none is written)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run the rollout and print it."""
    args = parse_args(argv)
    settings = StageSettings(
        tasks=args.tasks,
        images=args.images,
        model=args.model,
        agent=AgentSettings.from_dict(agent_section(args.configfile) | args.set),
        trajectories=args.trajectories,
        grades=args.grades,
        testbed_python=args.testbed_python,
        request=args.request,
    )
    model = make_model(args, settings)
    stage = Stage(settings)
    task = args.task or next((row["instance_id"] for row in read_jsonl(args.tasks)), None)
    if task is None:
        raise UserError(f"{args.tasks} holds no task")
    stage.tasks[task]
    request = Request(task, args.sample, args.seed, grade=not args.no_grade)
    rollout = run_rollout(stage, request, model, on_message=show_message)
    show(rollout)
    if not rollout.record.valid:
        raise UserError(f"the rollout of {task} has no verdict: {rollout.record.error}")


def agent_section(overlays: list[Path]) -> dict[str, Any]:
    """Return the section `agent` of config.yaml with that of each overlay laid over it."""
    section: dict[str, Any] = {}
    for path in (REPOSITORY / "config.yaml", *overlays):
        part = read_configfile(path).get("agent") or {}
        if not isinstance(part, dict):
            raise UserError(f"{path} is no configuration: its key `agent` must have keys of its own")
        section |= part
    return section


def make_model(args: argparse.Namespace, settings: StageSettings) -> Model:
    """Return the policy that the command line asks for."""
    if args.scripted:
        return ScriptedModel(read_replies(args.scripted))
    return ChatModel(
        args.model_url,
        os.environ.get("OPENAI_API_KEY", ""),
        model=args.model,
        seed=args.seed,
        max_tokens=settings.agent.max_tokens,
        extra=settings.agent.request | settings.request,
    )


def read_replies(path: Path) -> list[str]:
    """Return the replies of --scripted. Raise UserError if the file is not there or no JSON list of strings."""
    wanted = '--scripted takes a JSON list of replies, such as ["```bash\\nls\\n```"]'
    try:
        replies = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {wanted}") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): {wanted}") from None
    if not isinstance(replies, list) or not all(isinstance(reply, str) for reply in replies):
        raise UserError(f"{path} is no JSON list of strings: {wanted}")
    return replies


def show_message(message: Message) -> None:
    """Print one message under a line that says who speaks, and what the trajectory keeps of it."""
    extra = message["extra"]
    notes = [message["role"]]
    if blocked := extra.get("blocked"):
        notes.append(f"refused: {blocked['kind']}, {blocked['program']}")
    if extra.get("finish_reason") == "length":
        notes.append("cut at its token limit")
    if usage := extra.get("usage"):
        notes.append(f"prompt {usage['prompt_tokens']} tokens, answer {usage['completion_tokens']}")
    text = f"--- {' | '.join(notes)}\n{message['content']}\n"
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        exit_without_reader()  # an OSError would count as a failure of the machine


def show(rollout: Rollout) -> None:
    """Print the patch and the record."""
    sys.stdout.buffer.write(b"--- patch\n" + rollout.patch)
    sys.stdout.buffer.flush()
    print("--- record")
    for name, value in rollout.record.to_dict().items():
        print(f"{name}: {value}")
    for reason, count in rollout.left_out.items():
        print(f"left out of the patch: {count} ({reason})")


if __name__ == "__main__":
    run_script(main, interrupted=INTERRUPTED)
