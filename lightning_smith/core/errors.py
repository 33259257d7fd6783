"""Errors that a user can act on, and how a script ends."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn


class UserError(Exception):
    """One sentence that names the file, row, host or service at fault and the remedy."""


def unforeseen(error: Exception) -> str:
    """Return an error that no sentence was written for as a record's text; its traceback goes to standard error."""
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


RESUMABLE = "interrupted: run the same command again and it goes on from what had finished"


ENVIRONMENTS = {"swebench": "eval", "swesmith": "smith", "torch": "mini", "transformers": "mini"}
"""Packages that the environment of the workflow lacks, and the folder below envs/ whose environment has them."""


_OF_THE_PATH = (
    errno.EACCES, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EPERM, errno.EROFS,
)  # fmt: skip
"""Errors that say that a path is of another kind than is needed there, or closed to this user."""


def run_script(main: Callable[[], None], *, interrupted: str = RESUMABLE) -> NoReturn:
    """Run a script's `main` and exit: 0, or 1 with `error: <sentence>`, or 130 with `interrupted` after Ctrl-C.

    A reader of standard output that has gone (`| head`) ends the script quietly, as it does other programs.
    SIGTERM is turned into SystemExit, so that context managers stop the services they started.
    A package that another environment has is named with that environment, a path that cannot be used with the reason.
    Any other exception keeps its traceback: it is a defect.
    """
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        exit_without_reader()
    except ModuleNotFoundError as error:
        if (environment := ENVIRONMENTS.get(error.name or "")) is None:
            raise
        print(
            f"error: {error.name} is not in this Python's environment: run the script with "
            f"`uv run --frozen --project envs/{environment} python {sys.argv[0]} ...`",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(1)
    except OSError as error:
        if error.errno in _OF_THE_PATH and error.filename:
            print(
                f"error: {error.filename} cannot be used ({error.strerror}): name another path, or put this one right, "
                "and run the same command again",
                file=sys.stderr,
                flush=True,
            )
            sys.exit(1)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" while writing {error.filename}" if error.filename else ""
        print(
            f"error: no space left on the disk{where}: free some (df -h) and run the same command again",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(1)
    sys.exit(0)


def _stop(number: int, _: object) -> NoReturn:
    """End this process; later signals must not break off the closing that the first one has begun."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: None)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(143)


def exit_without_reader() -> NoReturn:
    """End quietly because nobody reads standard output any more: status 128 + SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(128 + signal.SIGPIPE)


@contextlib.contextmanager
def exit_on_user_error() -> Iterator[None]:
    """Turn a UserError into `error: <sentence>` and exit code 1, for code that is not a script (the Snakefile)."""
    try:
        yield
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
