"""From the raw SWE-smith release to a SWE-bench Verified results table.

Plan: `uv run snakemake -n`. Targets with a sentence each: `uv run snakemake --list-target-rules`. The whole experiment in
miniature: `uv run snakemake --profile mini`. One file a stage under rules/, in the order of the workflow.
"""

from snakemake.utils import min_version

min_version("9.27")


configfile: workflow.source_path("config.yaml")


include: "rules/common.smk"
include: "rules/start.smk"
include: "rules/environments.smk"
include: "rules/miniature.smk"
include: "rules/warm_start.smk"
include: "rules/release.smk"
include: "rules/images.smk"
include: "rules/image_sets.smk"
include: "rules/miniature_images.smk"
include: "rules/filters.smk"
include: "rules/more_filters.smk"
include: "rules/certify.smk"
include: "rules/references.smk"
include: "rules/probe.smk"
include: "rules/train.smk"
include: "rules/evaluate.smk"
include: "rules/report.smk"


wildcard_constraints:
    recipe=r"[a-z][a-z0-9_]*",
    step=r"\d+",


onstart:
    hold_folder_and_check_machine()


onerror:
    print(failures_text(Path(f"{WORK}/image_failures")), file=sys.stderr, end="")


rule all:
    """Everything up to the results table and its figures."""
    default_target: True
    input:
        rules.prepare_data.input,
        rules.results_table.input,
        rules.data_table.input,
        rules.figures.input,
    localrule: True
