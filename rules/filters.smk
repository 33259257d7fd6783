"""From the raw release to the candidates, every row kept or dropped with a reason.

INPUTS   {data}/raw/train-*.parquet, {data}/branches/{image}.json
OUTPUTS  {data}/funnel.tsv, {data}/candidates.parquet
"""

# In the order of the ledger: those of the published recipe, so that their counts are those of the release alone; what
# cannot be graded; what the configuration names.
FILTERS = ["statement", "branch", "test_count", "fail_to_pass", "bug_in_tests"]
FILTERS += ["overlap"] if config["filters"]["overlap"] != "none" else []
FILTERS += [name for name in ("gradable", "validated") if config["filters"][name]]


def filter_before(name):
    """The decisions of the filter that runs before this one; refuses one that is switched off."""
    with exit_on_user_error():
        if name not in FILTERS:
            value = "file" if name == "overlap" else "true"
            raise UserError(
                f"the filter {name} is off in this configuration: switch it on with "
                f"--config 'filters={{{name}: {value}}}'"
            )
    return f"{DATA}/filters/{FILTERS[FILTERS.index(name) - 1]}.tsv"


def branches_of_images(wildcards):
    """Branch lists of every image that the release names, known once the release is there."""
    table = Path(checkpoints.list_image_names.get(set="release").output[0])
    if BACKENDS["images"] == "local" and not OF_MINIATURE:
        own_images("release")
    return [f"{DATA}/branches/{key}.json" for key in read_names(table)]


rule filter_statement:
    """Drop rows whose problem statement says nothing."""
    input:
        shards=RAW,
    output:
        f"{DATA}/filters/statement.tsv",
    log:
        f"{LOGS}/filter_statement.log",
    resources:
        machine="any",
    message:
        "filter: problem statement"
    shell:
        "python scripts/funnel/filter_statement.py --shards {input.shards:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule filter_branch:
    """Drop rows whose branch their image lacks."""
    input:
        shards=RAW,
        previous=rules.filter_statement.output,
        branches=branches_of_images,
        images=table_of_images("release"),
    output:
        decisions=f"{DATA}/filters/branch.tsv",
        readings=f"{DATA}/branch_readings.json",
    log:
        f"{LOGS}/filter_branch.log",
    resources:
        machine="any",
    message:
        "filter: branch in the image"
    shell:
        "python scripts/funnel/filter_branch.py --shards {input.shards:q} --previous {input.previous:q}"
        " --branches {input.branches:q} --readings {output.readings:q} --out {output.decisions:q}"
        " 2>&1 | tee -i {log:q}"


rule filter_test_count:
    """Drop rows that need more tests than the limit."""
    input:
        shards=RAW,
        previous=rules.filter_branch.output.decisions,
    output:
        f"{DATA}/filters/test_count.tsv",
    log:
        f"{LOGS}/filter_test_count.log",
    resources:
        machine="any",
    params:
        limit=config["filters"]["test_count"]["limit"],
    message:
        "filter: number of tests"
    shell:
        "python scripts/funnel/filter_test_count.py --shards {input.shards:q} --previous {input.previous:q}"
        " --limit {params.limit} --out {output:q} 2>&1 | tee -i {log:q}"


rule filter_fail_to_pass:
    """Drop rows without a FAIL_TO_PASS test."""
    input:
        shards=RAW,
        previous=rules.filter_test_count.output,
    output:
        f"{DATA}/filters/fail_to_pass.tsv",
    log:
        f"{LOGS}/filter_fail_to_pass.log",
    resources:
        machine="any",
    message:
        "filter: a test that tells bug from repair"
    shell:
        "python scripts/funnel/filter_fail_to_pass.py --shards {input.shards:q} --previous {input.previous:q}"
        " --out {output:q} 2>&1 | tee -i {log:q}"


rule filter_bug_in_tests:
    """Drop rows whose bug lies in a file that grades them."""
    input:
        shards=RAW,
        previous=rules.filter_fail_to_pass.output,
    output:
        f"{DATA}/filters/bug_in_tests.tsv",
    log:
        f"{LOGS}/filter_bug_in_tests.log",
    resources:
        machine="any",
    params:
        grade=config["agent"]["grade"],
    message:
        "filter: bug in a test file"
    shell:
        "python scripts/funnel/filter_bug_in_tests.py --shards {input.shards:q} --previous {input.previous:q}"
        " --grade {params.grade} --out {output:q} 2>&1 | tee -i {log:q}"


rule collect_candidates:
    """Write the funnel's ledger and the rows that survived every filter."""
    input:
        shards=RAW,
        decisions=[f"{DATA}/filters/{name}.tsv" for name in FILTERS],
    output:
        funnel=f"{DATA}/funnel.tsv",
        candidates=f"{DATA}/candidates.parquet",
    log:
        f"{LOGS}/collect_candidates.log",
    resources:
        machine="any",
    message:
        "collect the candidates"
    shell:
        "python scripts/funnel/collect_candidates.py --shards {input.shards:q} --decisions {input.decisions:q}"
        " --funnel {output.funnel:q} --candidates {output.candidates:q} 2>&1 | tee -i {log:q}"
