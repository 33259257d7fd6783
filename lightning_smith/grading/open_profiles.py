"""Who knows how a repository's tests are run, by its name on a command line."""

from __future__ import annotations

from pathlib import Path

from lightning_smith.core.errors import UserError
from lightning_smith.grading.profiles import ImageProfiles, ProfileSource


def profile_source(named: str) -> ProfileSource:
    """Return who knows how repositories' tests are run: SWE-smith's registry (`smith`), or a folder of local images.

    Raise UserError where swesmith is wanted and not installed.
    """
    if named != "smith":
        return ImageProfiles(Path(named))
    try:
        from lightning_smith.grading.smith_profiles import SmithProfiles
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not in this environment: run the script with `uv run --frozen --project envs/smith`"
        ) from None
    return SmithProfiles()
