"""Snakemake in processes that are forked once it is imported: half of what a plan takes is the start of Python."""

from __future__ import annotations

import os
import sys
from multiprocessing import get_context
from pathlib import Path

PRELOADED = ["snakemake.cli", "snakemake.report.html_reporter", "jsonschema", "yte.value_handler"]
_context = get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


def dry_run(*arguments: str, cwd: Path, log: Path) -> tuple[int | None, str]:
    """Exit code and all output of `snakemake -n` with these arguments."""
    process = _context.Process(target=_snakemake, args=(["-n", *arguments], cwd, log))
    process.start()
    process.join(120)
    if process.is_alive():
        process.kill()
    process.join()
    return process.exitcode, log.read_text()


def _snakemake(arguments: list[str], cwd: Path, log: Path) -> None:
    with log.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(cwd)
    sys.path.insert(0, str(cwd))  # the package of that checkout, as with `python -m snakemake`
    sys.argv = ["snakemake", *arguments]
    from snakemake.cli import main

    main()
