"""From the raw release to the candidates, every row accounted for.

INPUTS   the release (Hugging Face, or the miniature's folder), branches inside the images
OUTPUTS  {data}/funnel.tsv, {data}/candidates.parquet
"""

SHARDS = [f"{i:05d}-of-{config['release']['shards']:05d}" for i in range(config["release"]["shards"])]
RAW = [f"{DATA}/raw/train-{shard}.parquet" for shard in SHARDS]
FROM_FOLDER = config["backends"]["hub"] == "folder"


def branches_of_images(wildcards):
    """Branch lists of every image that the release names, known once the release is there."""
    table = Path(checkpoints.list_images.get().output[0])
    return [f"{DATA}/branches/{line}.json" for line in table.read_text().splitlines()]


rule download_shard:
    """Fetch one parquet shard of the release and check its hash."""
    input:
        [f"{DATA}/hub/SHA256SUMS"] if FROM_FOLDER else [],
    output:
        f"{DATA}/raw/train-{{shard}}.parquet",
    log:
        f"{LOGS}/download_shard/{{shard}}.log",
    wildcard_constraints:
        shard=r"\d{5}-of-\d{5}",
    resources:
        machine="any",
    params:
        source="folder" if FROM_FOLDER else "hub",
        location=f"{DATA}/hub" if FROM_FOLDER else config["release"]["dataset"],
        revision=config["release"]["revision"] or "none",
    message:
        "download shard {wildcards.shard}"
    shell:
        "python scripts/download_shard.py --source {params.source} --location {params.location:q}"
        " --revision {params.revision} --file data/train-{wildcards.shard}.parquet --out {output:q}"
        " 2>&1 | tee -i {log:q}"


checkpoint list_images:
    """List the images that the release names."""
    input:
        RAW,
    output:
        f"{DATA}/images.txt",
    log:
        f"{LOGS}/list_images.log",
    resources:
        machine="any",
    params:
        rows=config["release"]["rows"] or 0,
    message:
        "list the images of the release"
    shell:
        "python scripts/list_images.py --shards {input:q} --rows {params.rows} --out {output:q} 2>&1 | tee -i {log:q}"


rule list_branches:
    """Read the branches inside one image, without network and without starting the task."""
    input:
        [f"{WORK}/images/{{image}}/image.json"] if config["backends"]["images"] == "local" else [],
    output:
        f"{DATA}/branches/{{image}}.json",
    log:
        f"{LOGS}/list_branches/{{image}}.log",
    resources:
        machine="A",
    message:
        "list the branches of {wildcards.image}"
    shell:
        "python scripts/list_branches.py --image-name {wildcards.image} --images {WORK}/images --out {output:q}"
        " 2>&1 | tee -i {log:q}"


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
        "python scripts/filter_statement.py --shards {input.shards:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule filter_branch:
    """Drop rows whose branch their image lacks."""
    input:
        shards=RAW,
        previous=rules.filter_statement.output,
        branches=branches_of_images,
    output:
        f"{DATA}/filters/branch.tsv",
    log:
        f"{LOGS}/filter_branch.log",
    resources:
        machine="any",
    message:
        "filter: branch in the image"
    shell:
        "python scripts/filter_branch.py --shards {input.shards:q} --previous {input.previous:q}"
        " --branches {input.branches:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule filter_test_count:
    """Drop rows that need more tests than the limit."""
    input:
        shards=RAW,
        previous=rules.filter_branch.output,
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
        "python scripts/filter_test_count.py --shards {input.shards:q} --previous {input.previous:q}"
        " --limit {params.limit} --out {output:q} 2>&1 | tee -i {log:q}"


rule collect_candidates:
    """Write the funnel's ledger and the rows that survived every filter."""
    input:
        shards=RAW,
        decisions=[rules.filter_statement.output, rules.filter_branch.output, rules.filter_test_count.output],
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
        "python scripts/collect_candidates.py --shards {input.shards:q} --decisions {input.decisions:q}"
        " --funnel {output.funnel:q} --candidates {output.candidates:q} 2>&1 | tee -i {log:q}"


rule prepare_data:
    """The data funnel: raw release, filters, ledger, candidates."""
    localrule: True
    input:
        rules.collect_candidates.output,
