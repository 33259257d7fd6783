"""The results table and its figures, from small files alone: no GPU, no cluster, no model.

INPUTS   {results}/eval/*/step_*/{counts.json,verdicts.jsonl}, {results}/train/*/step_*.json,
         {data}/{funnel,overlap}.tsv
OUTPUTS  {results}/tables/main.{md,csv}, {results}/tables/data.md, {results}/figures/*.svg
"""

from lightning_smith.config.stages import table_stage

CONTROLS = [f"{RESULTS}/eval/control_{kind}.json" for kind in CONFIG.report.controls]
LAST_MANIFESTS = {
    name: f"{RESULTS}/train/{name}/step_{recipe['checkpoints'][-1]}.json"
    for name, recipe in RECIPES.items()
}
TRAINED = [
    f"{RESULTS}/train/{recipe}/step_{step}.json" for recipe, step in EVALUATED if step
]


rule make_table:
    """Write the results table: measured rows, the comparison with the base, published rows."""
    input:
        rules.evaluate_verified.input,
        TRAINED,
        controls=CONTROLS,
        published="assets/published/results.tsv",
    output:
        markdown=f"{RESULTS}/tables/main.md",
        csv=f"{RESULTS}/tables/main.csv",
    log:
        f"{LOGS}/make_table.log",
    resources:
        machine="any",
    params:
        settings=settings(table_stage, EVALUATED, CONTROLS),
    message:
        "write the results table"
    shell:
        "python scripts/report/make_table.py --settings {params.settings:q} --published {input.published:q}"
        " --markdown {output.markdown:q} --csv {output.csv:q} 2>&1 | tee -i {log:q}"


rule write_data_table:
    """Write the page on the training data: the funnel, and what the evaluation set shares with the release."""
    input:
        funnel=rules.collect_candidates.output.funnel,
        overlap=rules.find_overlap.output.table,
    output:
        f"{RESULTS}/tables/data.md",
    log:
        f"{LOGS}/write_data_table.log",
    resources:
        machine="any",
    params:
        title=f"Training data of the experiment `{config['experiment']}`",
    message:
        "write the page on the training data"
    shell:
        "python scripts/report/write_data_table.py --funnel {input.funnel:q} --overlap {input.overlap:q}"
        " --title {params.title:q} --out {output:q} 2>&1 | tee -i {log:q}"


rule draw_figures:
    """Draw funnel, reward curves and evaluation."""
    input:
        LAST_MANIFESTS.values(),
        funnel=rules.collect_candidates.output.funnel,
        results=rules.make_table.output.csv,
    output:
        funnel=f"{RESULTS}/figures/funnel.svg",
        reward=f"{RESULTS}/figures/reward.svg",
        evaluation=f"{RESULTS}/figures/evaluation.svg",
    log:
        f"{LOGS}/draw_figures.log",
    resources:
        machine="any",
    params:
        metrics=" ".join(
            f"--metrics {name} {manifest}" for name, manifest in LAST_MANIFESTS.items()
        ),
        out=lambda wildcards, output: Path(output.funnel).parent,
    message:
        "draw the figures"
    shell:
        "python scripts/report/draw_figures.py --funnel {input.funnel:q} {params.metrics} --results {input.results:q}"
        " --out {params.out:q} 2>&1 | tee -i {log:q}"


rule results_table:
    """The results table."""
    input:
        rules.make_table.output,
    localrule: True


rule data_table:
    """The page on the training data: the funnel, and what the evaluation set shares with them."""
    input:
        rules.write_data_table.output,
    localrule: True


rule figures:
    """The figures."""
    input:
        rules.draw_figures.output,
    localrule: True
