"""Helpers of the rules: folders, names, previous steps. No rules here."""

import os
import sys
from pathlib import Path

import yaml

from lightning_smith.backends import refuse_missing
from lightning_smith.config import active_recipes, check_references, check_schema
from lightning_smith.errors import exit_on_user_error
from lightning_smith.files import dump_json
from lightning_smith.machines import refuse_wrong_machine
from lightning_smith.runlock import RunLock

with exit_on_user_error():
    check_schema(config, yaml.safe_load(Path(workflow.source_path("../schemas/config.schema.yaml")).read_text()))
    check_references(config)

# The environment that runs Snakemake also runs gateway and controller; scripts in other environments find it here.
os.environ["LIGHTNING_SMITH_PYTHON"] = sys.executable
# uv would warn about it in every rule that runs in another environment.
os.environ.pop("VIRTUAL_ENV", None)
# Several processes share the cores: none may spin while it waits.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

DATA, WORK, RESULTS = (config["dirs"][key] for key in ("data", "work", "results"))
LOGS = f"{WORK}/logs"
RECIPES = active_recipes(config)
ASSETS = "assets/miniature"


def hold_folder_and_check_machine():
    """Before the first job: refuse a second run in this folder, the wrong machine, and backends that are missing."""
    jobs = [
        {"rule": job.rule.name, "machine": str(job.resources.get("machine", "any"))}
        for job in workflow.dag.needrun_jobs()
    ]
    with exit_on_user_error():
        refuse_wrong_machine(jobs, sorted(rule.name for rule in workflow.dag.targetrules))
        refuse_missing((job["rule"] for job in jobs), config["backends"])
        globals()["_run_lock"] = RunLock(".snakemake")
