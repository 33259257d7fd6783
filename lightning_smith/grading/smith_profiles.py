"""SWE-smith's own profiles, from its registry. Runs in envs/smith."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swesmith.profiles import registry

from lightning_smith.grading.log_lines import PYTEST_FORMS, Parser, readable_forms
from lightning_smith.grading.profiles import PYTHON, Profile

_MARKED = ("tests/test_marked.py::test_marked_a", "tests/test_marked.py::test_marked_b")
_MARKED_UNITTEST = ("test_a (tests.test_marked.Case)", "test_b (tests.test_marked.Case)")


class SmithProfiles:
    """ProfileSource of swesmith's registry, by the column `repo`."""

    def profile(self, repo: str, image_name: str) -> Profile:
        """One without a language if the registry does not have the repository."""
        try:
            known = registry.get(repo)
        except KeyError:
            return Profile(repo, image_name)
        language = _language(known)
        if language != PYTHON:
            return Profile(repo, image_name, language)
        forms = readable_forms(known.log_parser)
        parser = type(known).log_parser
        return Profile(
            repo=repo,
            image_name=image_name,
            language=language,
            test_command=known.test_cmd,
            fail_to_pass_command=_fail_to_pass_command(known, forms),
            log_parser=f"{parser.__module__}.{parser.__qualname__}",
            line_forms=forms,
            timeout_s=float(known.timeout),
            reference_timeout_s=float(known.timeout_ref),
            min_testing=known.min_testing,
            min_pregold=known.min_pregold,
            evaluation_sets=tuple(sorted(known.eval_sets)),
        )

    def parser(self, profile: Profile, known: Sequence[str]) -> Parser:
        return registry.get(profile.repo).log_parser


def _language(profile: Any) -> str:
    """Of the profile's base class, such as PythonProfile."""
    names = (base.__name__ for base in type(profile).__mro__)
    return next(name for name in names if name.endswith("Profile")).removesuffix("Profile").lower()


def _fail_to_pass_command(profile: Any, forms: tuple[str, ...]) -> str:
    """Return the profile's command for two tests of one file, with placeholders for the file and for their names."""
    tests = list(_MARKED if PYTEST_FORMS.issuperset(forms) else _MARKED_UNITTEST)
    instance = {"instance_id": f"{profile.repo_name}.x", "FAIL_TO_PASS": tests, "PASS_TO_PASS": []}
    command, _ = profile.get_test_cmd(instance, f2p_only=True)
    command = command.replace("test_marked_a or test_marked_b", "{names}")
    return command.replace("tests/test_marked.py", "{files}").rstrip()
