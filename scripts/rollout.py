"""Run one task by hand and print the conversation as it goes, then the patch and the record of the rollout.

The policy is an OpenAI chat endpoint, or a file of scripted replies: a JSON list of strings. --settings takes what
the section `agent` of config.yaml holds, laid over the defaults that --help shows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from lightning_smith.errors import UserError, run_script
from lightning_smith.files import read_json
from lightning_smith.rollout.agent import Request, Rollout, Stage, run_rollout
from lightning_smith.rollout.chat import ChatModel, Message, Model, ScriptedModel
from lightning_smith.rollout.stage import AgentSettings, StageSettings

SETTINGS = {
    "max_turns": 50,
    "max_tokens": 4096,
    "observation_chars": 6000,
    "command_timeout_s": 60,
    "rollout_timeout_s": 1800,
    "max_format_errors": 3,
    "grading_timeout_s": 60,
    "system_template": "Fix the bug. Reply with one bash block.",
    "instance_template": "{problem_statement}",
}


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--task", required=True, metavar="ID", help="instance id")
    add("--tasks", type=Path, required=True, help="JSON lines of SWE-smith rows")
    add("--images", type=Path, required=True, help="folder of the local images")
    policy = parser.add_mutually_exclusive_group(required=True)
    policy.add_argument(
        "--model-url", help="base URL of an OpenAI endpoint; its key is OPENAI_API_KEY, if set"
    )
    policy.add_argument("--scripted", type=Path, help="JSON list of replies")
    add("--model", default="policy", help="name of the model in requests (default %(default)s)")
    add("--seed", type=int, default=0, help="of the requests (default %(default)s)")
    add("--sample", type=int, default=0, help="number of the rollout, for its record (default %(default)s)")
    add("--settings", type=json.loads, default={}, help=f"JSON laid over {json.dumps(SETTINGS)}")
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
        agent=AgentSettings.from_dict({**SETTINGS, **args.settings}),
        trajectories=args.trajectories,
        grades=args.grades,
        testbed_python=args.testbed_python,
    )
    request = Request(args.task, args.sample, args.seed, grade=not args.no_grade)
    stage = Stage(settings)
    show(run_rollout(stage, request, make_model(args, settings), on_message=show_message))


def make_model(args: argparse.Namespace, settings: StageSettings) -> Model:
    """The policy that the command line asks for."""
    if args.scripted:
        replies = read_json(args.scripted)
        if not isinstance(replies, list) or not all(isinstance(reply, str) for reply in replies):
            raise UserError(f"{args.scripted} is no JSON list of strings")
        return ScriptedModel(replies)
    key = os.environ.get("OPENAI_API_KEY", "")
    return ChatModel(
        args.model_url, key, model=args.model, seed=args.seed, max_tokens=settings.agent.max_tokens
    )


def show_message(message: Message) -> None:
    """Print one message under a line with its role."""
    print(f"--- {message['role']}\n{message['content']}", flush=True)


def show(rollout: Rollout) -> None:
    """Print the patch and the record."""
    print("--- patch", flush=True)
    sys.stdout.buffer.write(rollout.patch)
    sys.stdout.buffer.flush()
    print("--- record")
    for name, value in rollout.record.to_dict().items():
        print(f"{name}: {value}")
    for reason, count in rollout.left_out.items():
        print(f"left out of the patch: {count} ({reason})")


if __name__ == "__main__":
    run_script(main)
