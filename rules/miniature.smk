"""The miniature's raw release and repositories, made from PyPI sdists and assets/miniature/tasks.

INPUTS   assets/miniature/{sources.tsv,left_out.tsv,tasks/}
OUTPUTS  {work}/sdists/*, {data}/hub/SHA256SUMS, {data}/heldout.parquet, {work}/images/{image}/image.json
"""

SDISTS = [f"{WORK}/sdists/{source.filename}" for source in TASK_SOURCES]
SOURCE_OF_IMAGE = {image_key(source.image_name): source for source in TASK_SOURCES}
TASK_TABLES = [
    f"{ASSETS}/tasks/{name}" for name in ("train.jsonl", "heldout.jsonl", "tests.json")
]


rule fetch_sdist:
    """Download one pinned sdist from the package index and check its hash."""
    output:
        f"{WORK}/sdists/{{filename}}",
    log:
        f"{LOGS}/fetch_sdist/{{filename}}.log",
    resources:
        machine="any",
    params:
        assets=ASSETS,
        package=lambda wildcards: SOURCES[wildcards.filename].package,
        sha256=lambda wildcards: SOURCES[wildcards.filename].sha256,
    message:
        "fetch {wildcards.filename}"
    shell:
        "python scripts/miniature/fetch_sdist.py --sources {params.assets}/sources.tsv --package {params.package}"
        " --out {output:q} 2>&1 | tee -i {log:q}"


rule fetch_sdists:
    """All sdists that the miniature's tasks need."""
    input:
        SDISTS,
    localrule: True


rule build_release:
    """Write the miniature's tasks as a release in SWE-smith's columns and shards."""
    input:
        sdists=SDISTS,
        tasks=TASK_TABLES,
    output:
        sums=f"{DATA}/hub/SHA256SUMS",
    log:
        f"{LOGS}/build_release.log",
    resources:
        machine="any",
    params:
        work=WORK,
        data=DATA,
        assets=ASSETS,
        shards=config["release"]["shards"],
    message:
        "build the miniature's release"
    shell:
        "python scripts/miniature/build_release.py --tasks {params.assets}/tasks"
        " --sources {params.assets}/sources.tsv --sdists {params.work}/sdists"
        " --shards {params.shards} --out {params.data}/hub 2>&1 | tee -i {log:q}"


rule build_heldout:
    """Write the held-out tasks in SWE-bench's format."""
    input:
        sdists=SDISTS,
        tasks=TASK_TABLES,
    output:
        f"{DATA}/heldout.parquet",
    log:
        f"{LOGS}/build_heldout.log",
    resources:
        machine="any",
    params:
        work=WORK,
        assets=ASSETS,
    message:
        "build the held-out set"
    shell:
        "python scripts/miniature/build_heldout.py --tasks {params.assets}/tasks"
        " --sources {params.assets}/sources.tsv --sdists {params.work}/sdists --out {output:q} 2>&1 | tee -i {log:q}"


# Repositories of another release are its owner's: no rule may write them.
if OF_MINIATURE:

    rule build_image:
        """Build the git repository of one package, with a branch for each of its tasks."""
        input:
            sdist=lambda wildcards: f"{WORK}/sdists/{SOURCE_OF_IMAGE[wildcards.image].filename}",
            tasks=TASK_TABLES,
            environment=f"{WORK}/envs/testbed.json",
        output:
            f"{WORK}/images/{{image}}/image.json",
        log:
            f"{LOGS}/build_image/{{image}}.log",
        wildcard_constraints:
            image="|".join(map(re.escape, SOURCE_OF_IMAGE)),
        resources:
            machine="any",
        params:
            work=WORK,
            assets=ASSETS,
            package=lambda wildcards: SOURCE_OF_IMAGE[wildcards.image].package,
        message:
            "build image {wildcards.image}"
        shell:
            "python scripts/miniature/build_image.py --package {params.package} --sources {params.assets}/sources.tsv"
            " --sdist {input.sdist:q} --tasks {params.assets}/tasks --testbed-python envs/testbed/.venv/bin/python"
            " --out {params.work}/images/{wildcards.image} 2>&1 | tee -i {log:q}"


rule make_tasks:
    """Make assets/miniature/tasks again from nothing (3,200 test runs), under {work}/made/tasks."""
    input:
        sdists=SDISTS,
        smith=f"{WORK}/envs/smith.json",
        testbed=f"{WORK}/envs/testbed.json",
    output:
        f"{WORK}/made/tasks/tests.json",
    log:
        f"{LOGS}/make_tasks.log",
    threads: 2
    resources:
        machine="any",
    params:
        work=WORK,
        assets=ASSETS,
    message:
        "make the miniature's tasks from the packages"
    shell:
        "uv run --frozen --project envs/smith python scripts/miniature/make_tasks.py"
        " --sources {params.assets}/sources.tsv --left-out {params.assets}/left_out.tsv --sdists {params.work}/sdists"
        " --work {params.work}/make_tasks --out {params.work}/made/tasks --jobs {threads} 2>&1 | tee -i {log:q}"
