"""Write how the tests of each repository of a release are run and read: the table of profiles.

For SWE-smith's own repositories (--source smith) run it in envs/smith, which has SWE-smith's registry.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from lightning_smith.core.errors import run_script
from lightning_smith.grading.open_profiles import profile_source
from lightning_smith.grading.profiles import release_repositories, write_profiles


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, nargs="+", required=True, help="parquet shards of the release")
    parser.add_argument("--source", required=True, help="smith, or a folder of local images")
    parser.add_argument("--out", type=Path, required=True, help="JSON table, a row a repository and image")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    source = profile_source(args.source)
    profiles = [source.profile(repo, image) for repo, image in release_repositories(args.shards)]
    write_profiles(args.out, profiles)
    counts = Counter(profile.language or "without a profile" for profile in profiles)
    languages = ", ".join(f"{count} {language}" for language, count in counts.most_common())
    print(f"{len(profiles)} repositories: {languages}")


if __name__ == "__main__":
    run_script(main)
