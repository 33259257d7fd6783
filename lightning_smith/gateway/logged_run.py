"""A stage that is many rollouts: run what its log lacks, keep what is there, count what has no verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from lightning_smith.contracts.outcome import (
    RolloutRecord,
    blocked_counts,
    count_disagreements,
    solved_unsubmitted,
    suspicious,
    warn_unsubmitted,
)
from lightning_smith.core.errors import UserError
from lightning_smith.core.progress import Progress
from lightning_smith.gateway.dispatch import MAX_WINDOW, Finished, RolloutRequest, dispatch
from lightning_smith.gateway.launch import Stack
from lightning_smith.gateway.rollout_log import RolloutLog


def run_logged(
    stage: str,
    requests: Sequence[RolloutRequest],
    log: RolloutLog,
    start: Callable[[], AbstractContextManager[Stack]],
    *,
    retries: int = 2,
    max_invalid_fraction: float = 0.0,
    window: int = MAX_WINDOW,
    on_finished: Callable[[Finished], None] = lambda finished: None,
    check_record: Callable[[RolloutRecord], None] = lambda record: None,
) -> list[RolloutRecord]:
    """Run the requests without a valid record in `log`; returns one record a request, sorted.

    Services start (`start()`) only if something is missing. Each result is passed to `on_finished`, then
    logged, so that whatever the callback keeps is there for every logged record. Raise UserError if more
    than `max_invalid_fraction` of all requests have no valid record in the end; what is valid stays in the
    log. `check_record` raises UserError for a record, new or kept, that must not count.
    """
    for record in log.records():
        check_record(record)
    done = log.done()
    missing = [request for request in requests if (request.instance_id, request.sample) not in done]
    if missing:
        progress = Progress(stage, len(requests), done=len(requests) - len(missing))
        with start() as stack:
            results = dispatch(
                stack.gateway,
                missing,
                window=window,
                retries=retries,
                check=stack.check,
                agent=stack.agent,
                model=stack.policy.model_name,
                model_revision=stack.policy.revision,
            )
            for finished in results:
                check_record(finished.record)
                on_finished(finished)
                log.append(finished.record)
                progress.step(reward=finished.record.reward)
        progress.close()
    wanted = {(request.instance_id, request.sample) for request in requests}
    records = [record for record in log.records() if (record.instance_id, record.sample) in wanted]
    if blocked := blocked_counts(records):
        counts = ", ".join(f"{count} {kind}" for kind, count in blocked.items())
        print(f"[{stage}] refused commands: {counts}", file=sys.stderr, flush=True)
    if (share := solved_unsubmitted(records)) is not None:
        said = warn_unsubmitted(share) or f"{share:.0%} of the solved rollouts did not submit"
        print(f"[{stage}] {said}", file=sys.stderr, flush=True)
    if found := suspicious(records):
        print(
            f"[{stage}] {len(found)} of {len(records)} rollouts left a patch that uses what forging results takes, "
            f"such as {found[0].instance_id} sample {found[0].sample}: {found[0].hits[0]} (`hits` of its record)",
            file=sys.stderr,
            flush=True,
        )
    if disagreements := count_disagreements(records):
        print(
            f"[{stage}] the grader and SWE-smith's harness disagree on {disagreements} patches, none of them counts "
            "as solved",
            file=sys.stderr,
            flush=True,
        )
    refuse_invalid(stage, records, log, max_invalid_fraction)
    return records


def refuse_invalid(
    stage: str, records: Sequence[RolloutRecord], log: RolloutLog, max_invalid_fraction: float
) -> None:
    """Raise UserError if too many records carry no verdict, with their number and one of the causes."""
    invalid = [record for record in records if not record.valid]
    if len(invalid) > max_invalid_fraction * len(records):
        example = invalid[-1]
        raise UserError(
            f"{len(invalid)} of {len(records)} rollouts of {stage} have no verdict after all retries "
            f"(allowed: {max_invalid_fraction:.1%}), such as {example.instance_id} sample {example.sample} "
            f"({example.outcome}: {example.error}): remedy that and run the same command again, "
            f"{log.path} keeps the others"
        )
