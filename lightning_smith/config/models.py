"""The configuration: the one definition of its sections, keys, units and legal values.

    config = read_config(yaml.safe_load(text))     # UserError for the first key that is not legal
    config.probe.samples

config.yaml says where each value comes from. Every key is required there: what is laid over it needs only what differs.
`python -m lightning_smith.config.schema` writes schemas/config.schema.yaml, which editors read, from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from lightning_smith.config.agent import AgentSettings
from lightning_smith.config.check import adapter, checked, did_you_mean, refuse_foreign
from lightning_smith.config.recipes import Recipe, VerlSettings
from lightning_smith.config.values import (
    STRICT,
    Commit,
    Count,
    Folder,
    Fraction,
    Image,
    Name,
    Positive,
    Quantity,
    Registry,
    Seconds,
    Seed,
    Switch,
    Temperature,
    Text,
    Whole,
    refusal,
)
from lightning_smith.core.errors import UserError


def _distinct(values: Any) -> Any:
    """Refuse a list that names something twice, or nothing."""
    if isinstance(values, list | tuple) and len({str(value) for value in values}) < len(values):
        raise refusal(f"{list(values)} names something twice")
    return values


def _not_empty(values: Any) -> Any:
    if isinstance(values, list | tuple) and not values:
        raise refusal("it names nothing")
    return values


Distinct = BeforeValidator(_distinct)
NotEmpty = BeforeValidator(_not_empty)


@dataclass(frozen=True, config=STRICT)
class Dirs:
    """Folders, relative to the one that Snakemake runs in."""

    data: Annotated[Folder, Field(description="small tables of the data stages")]
    work: Annotated[Folder, Field(description="large or live things")]
    results: Annotated[Folder, Field(description="manifests, verdicts, tables, figures")]


@dataclass(frozen=True, config=STRICT)
class Backends:
    """Which implementation serves each stage."""

    hub: Annotated[Literal["huggingface", "folder"], Field(description="where the release is")]
    images: Annotated[Literal["docker", "local"], Field(description="a task's repository")]
    workspace: Annotated[
        Literal["pod", "docker", "bwrap"], Field(description="where the model's commands run")
    ]
    runner: Annotated[Literal["k8s", "local"], Field(description="what starts rollouts")]
    policy: Annotated[Literal["vllm", "torch"], Field(description="what answers the agent")]
    trainer: Annotated[Literal["verl", "torch"], Field(description="what computes gradients")]
    tests: Annotated[Literal["smith", "image"], Field(description="who says how a task's tests are run")]
    harness: Annotated[
        Literal["docker", "bwrap"], Field(description="where the official grading runs the tests")
    ]


@dataclass(frozen=True, config=STRICT)
class Release:
    """The raw release, and what is asserted of it."""

    dataset: Annotated[str, Field(description="Hugging Face id, or the folder's label")]
    revision: Annotated[Commit | None, Field(description="commit")]
    folder: Annotated[
        Name | None, Field(description="hub: folder only: where the shards are; null = the miniature's")
    ]
    shards: Annotated[int, Whole(1, 99999), Field(description="parquet files")]
    rows: Annotated[Count | None, Field(description="rows of all shards; null = any number")]
    empty_statements: Annotated[Quantity | None, Field(description="problem statements without text")]
    images: Annotated[Count | None, Field(description="distinct image names")]
    allow_other_counts: Annotated[
        tuple[Literal["rows", "empty_statements", "images"], ...],
        Distinct,
        Field(description="counts that may differ"),
    ]


@dataclass(frozen=True, config=STRICT)
class Images:
    """Docker images; read where backends.images is docker."""

    organisations: Annotated[
        tuple[
            Annotated[
                str, Text("^[a-z0-9][a-z0-9._-]*$", "write an organisation of Docker Hub, as swebench")
            ],
            ...,
        ],
        Distinct,
        NotEmpty,
        Field(description="where an image is looked for if its own name is not there"),
    ]
    mirror: Annotated[Registry | None, Field(description="mirror of Docker Hub, asked first")]
    min_mb_per_s: Annotated[Positive, Field(description="a pull slower than this is given up")]
    push_to: Annotated[Registry | None, Field(description="registry that nodes pull from")]
    import_into: Annotated[
        tuple[Annotated[str, Text("[^ ]", "write a command line, as ssh node1 sudo ctr -n k8s.io")], ...]
        | None,
        Distinct,
        NotEmpty,
        Field(description="command lines of nodes' containerd"),
    ]
    only: Annotated[
        Image | Annotated[tuple[Image, ...], NotEmpty] | None,
        Field(description="keys or names of the images that are wanted; null = all"),
    ]
    agent_python: Annotated[
        str,
        Text(
            r"^([0-9]+[.][0-9]+([.][0-9]+)?|.*/.*)$",
            'write a version in quotes, as "3.12.15", or the path of an interpreter',
        ),
        Field(description="Python of /opt/agent"),
    ]
    certify_tasks: Annotated[Quantity, Field(description="tasks of each release image that are graded in it")]
    miniature_base: Annotated[Image, Field(description="what the miniature's own images are made from")]


@dataclass(frozen=True, config=STRICT)
class TestCount:
    """The filter by number of tests."""

    __test__ = False

    limit: Annotated[Count, Field(description="tests of a row at most")]


@dataclass(frozen=True, config=STRICT)
class Filters:
    """Filters that have settings, or that are off unless they are named."""

    test_count: TestCount
    overlap: Annotated[
        Literal["none", "file", "repository"], Field(description="drops what the evaluation set is about too")
    ]
    gradable: Annotated[Switch, Field(description="drops tasks that the harness cannot grade")]
    validated: Annotated[Switch, Field(description="drops tasks whose test runs are not as their row says")]


@dataclass(frozen=True, config=STRICT)
class Validation:
    """Test runs of gold patches; read if filters.validated is true."""

    runs: Annotated[Count, Field(description="test runs of each of a task's two patches")]
    parts: Annotated[Count, Field(description="jobs that the tasks are divided among")]
    max_invalid_fraction: Annotated[
        Fraction, Field(description="test runs that may lack a verdict after retries")
    ]


@dataclass(frozen=True, config=STRICT)
class Probe:
    """The difficulty probe."""

    policy: Annotated[Name, Field(description="key under `policies`")]
    tasks: Annotated[Count | None, Field(description="candidates that are probed; null = all")]
    samples: Annotated[int, Whole(2), Field(description="rollouts a task")]
    temperature: Annotated[Temperature, Field(description="of the policy")]
    seed: Annotated[Seed, Field(description="of the draw of tasks and of every rollout's own seed")]
    max_invalid_fraction: Annotated[
        Fraction, Field(description="tasks that may lack one of their verdicts after retries")
    ]


Difficulty = Literal["all_solved", "mixed", "all_failed"]


@dataclass(frozen=True, config=STRICT)
class Selection:
    """The choice of training and validation tasks."""

    mixed_limit: Annotated[Count | None, Field(description="mixed training tasks at most; null = all")]
    all_failed_sample: Annotated[Quantity, Field(description="training tasks that were never solved")]
    validation_tasks: Annotated[Quantity, Field(description="tasks held aside before that")]
    validation_pool: Annotated[
        tuple[Difficulty, ...], Distinct, NotEmpty, Field(description="what these are drawn from")
    ]
    seed: Annotated[Seed, Field(description="of all draws")]


@dataclass(frozen=True, config=STRICT)
class Policy:
    """A model before training."""

    kind: Annotated[Literal["dense", "moe"], Field(description="whether it has experts")]
    model: Annotated[Name, Field(description="Hugging Face id or a folder")]
    revision: Annotated[Commit | None, Field(description="commit of a Hugging Face id; null = newest")]
    max_model_len: Annotated[Count, Field(description="tokens, prompt and answer")]


@dataclass(frozen=True, config=STRICT)
class Evaluation:
    """The evaluation of base and checkpoints."""

    dataset: Annotated[str, Field(description="Hugging Face id, or the label of the held-out set")]
    revision: Annotated[Commit | None, Field(description="commit; null = newest")]
    instances: Annotated[Count, Field(description="instances that are evaluated, drawn where there are more")]
    samples: Annotated[Count, Field(description="rollouts an instance")]
    temperature: Annotated[Temperature, Field(description="of the policy")]
    seed: Annotated[Seed, Field(description="of the draw and of every rollout's own seed")]
    max_invalid_fraction: Annotated[
        Fraction, Field(description="rollouts, and gradings, that may lack an outcome after retries")
    ]
    harness_timeout_s: Annotated[Seconds, Field(description="processor seconds of one instance's tests")]
    retest_fraction: Annotated[
        Fraction, Field(description="of the resolved patches, how many the grader of training tests again")
    ]


@dataclass(frozen=True, config=STRICT)
class Report:
    """The tables."""

    controls: Annotated[
        tuple[Literal["gold", "empty"], ...],
        Distinct,
        Field(description="what is graded beside the checkpoints"),
    ]


@dataclass(frozen=True, config=STRICT)
class WarmStart:
    """The miniature's policies, made from nothing."""

    device: Annotated[Literal["cpu", "cuda"], Field(description="on which the weights depend")]


RecipeName = Annotated[
    str, Text("^[a-z][a-z0-9_]*$", "write a lower-case letter, then lower-case letters, digits and _")
]


@dataclass(frozen=True, config=STRICT)
class Config:
    """Everything that config.yaml and what is laid over it may say."""

    experiment: Annotated[
        str,
        Text("^[a-z][a-z0-9-]*$", "write a lower-case letter, then lower-case letters, digits and -"),
        Field(description="name of the run"),
    ]
    dirs: Dirs
    backends: Backends
    release: Release
    images: Images
    filters: Filters
    references: Annotated[str | None, Field(description="find, the path of a reference file, or null")]
    validation: Validation
    probe: Probe
    selection: Selection
    agent: AgentSettings
    policies: Annotated[dict[str, Policy], NotEmpty]
    recipes: Annotated[dict[RecipeName, Recipe | None], NotEmpty]
    verl: VerlSettings | None
    evaluation: Evaluation
    report: Report
    warm_start: WarmStart


def read_config(values: dict[str, Any]) -> Config:
    """Return the configuration with types. Raise UserError for the first key that is not legal."""
    refuse_foreign(values)
    recipes = values.get("recipes")
    if isinstance(recipes, dict):
        for name, recipe in recipes.items():
            if isinstance(recipe, dict) and not _whole(recipe):
                known = (other for other, each in recipes.items() if other != name and each)
                if close := did_you_mean(name, known):
                    raise UserError(f"configuration key recipes.{name}: there is no such recipe ({close})")
    return checked(Config, values)


def _whole(recipe: dict[str, Any]) -> bool:
    """Return whether a recipe has every key, and not what an overlay changes of another alone."""
    fields = adapter(Recipe).json_schema()["required"]
    return set(fields) <= set(recipe)
