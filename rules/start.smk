"""What is looked at before the first job. No rules here."""

from lightning_smith.workflow.command_line import typed_flags
from lightning_smith.workflow.machines import PlannedJob, Request, check_host
from lightning_smith.core.process import pass_signals_on
from lightning_smith.core.run_lock import RunLock


def planned_jobs():
    """The jobs about to run, and which of them each waits for."""
    jobs = sorted(
        workflow.dag.needrun_jobs(), key=lambda job: (job.rule.name, *job.output)
    )
    place = {job: n for n, job in enumerate(jobs)}
    return [
        PlannedJob(
            job.rule.name,
            str(job.resources.get("machine", "any")),
            tuple(place[j] for j in workflow.dag.dependencies[job] if j in place),
            tuple(map(str, job.output)),
            bool(job.rule.wildcard_names),
        )
        for job in jobs
    ]


def hold_folder_and_check_machine():
    """Before the first job: refuse a second run in this folder, the wrong machine, and what is missing on it."""
    request = Request(
        (
            *sorted(rule.name for rule in workflow.dag.targetrules),
            *workflow.dag.targetfiles,
        ),
        typed_flags(
            workflow.config_settings.configfiles, workflow.config_settings.config_args
        ),
        (DATA, RESULTS),
        f"{WORK}/export",
        {
            "export_checkpoints": frozenset(
                file
                for file in rules.export_checkpoints.input
                if not Path(file).exists()
            )
        },
        "mini" if "laptop" in MAPPED_MACHINES.values() else "k8s",
    )
    with exit_on_user_error():
        check_host(planned_jobs(), request, BACKENDS)
        pass_signals_on()
        SETTINGS.write()
        globals()["_run_lock"] = RunLock(".snakemake")
