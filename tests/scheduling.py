"""Hands test files to xdist's workers: what shares something costly to one, what takes long first.

A worker that imports vLLM, or verl and torch, or starts a stack, spends more on that than on most
tests that need it. xdist's own way to keep tests together, the mark `xdist_group` with `--dist
loadgroup`, groups nothing with the locked pytest 9.2 and xdist 3.8 (pytest-xdist issue 1386), and
the workaround sets a private attribute. So `--dist loadfile` is told which files are as one.
"""

import fnmatch

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

GROUPS = {
    "models": (
        *(
            f"*/e2e/test_{name}.py"
            for name in (
                *("adapter", "at_the_terminal", "killed_services", "parts_of_trinity_rft"),
                *("results", "retrain", "transfers", "verl_rows"),
            )
        ),
        "*/integration/explorer/test_engine*.py",
        "*/integration/explorer/test_auxiliary_engines.py",
        "*/integration/explorer/test_held_answers.py",
        "*/integration/explorer/test_parsers.py",
        "*/integration/explorer/test_serving.py",
        "*/integration/explorer/test_transfers.py",
    ),
    "learners": (
        "*/integration/trainer/test_[!s]*.py",
        "*/integration/trainer/test_service_begins.py",
    ),
    "arena": tuple(
        f"*/chaos/test_{name}.py"
        for name in (
            "algorithms",
            "learning_selector",
            "operators",
            "replay",
            "retraining",
            "running_ahead",
            "selectors",
            "talking",
            "transfers",
            "varieties",
        )
    ),
    "model-free arena": ("*/chaos/test_exploring.py", "*/chaos/test_sync_styles.py"),
    "ended run": (
        "*/model_free/test_bench.py",
        *(f"*/inspect/test_{name}.py" for name in ("commands", "retraining", "source_runs")),
    ),
    "secured stack": tuple(
        f"*/integration/security/test_{name}.py" for name in ("callers", "speaking", "studio")
    ),
    "attacked stack": ("*/integration/hostile/test_*.py",),
    "several together": (
        "*/together/test_a_rank_dies.py",
        "*/together/test_two_experiments.py",
        "*/together/test_two_explorers.py",
    ),
    "shared stack": tuple(
        f"*/model_free/test_{name}.py"
        for name in (
            *("episodes", "explorer_keys", "goes_on_changed", "model_free", "stored_bytes"),
            *("submitted", "turns"),
        )
    ),
}
"""By what they share: an import of vLLM or verl, a run, or a stack of some kind."""
LONG_FILES = (
    "*/e2e/test_killed_launcher.py",
    "*/chaos/test_campaign.py",
    "*/integration/trainer/test_service.py",
    "*/chaos/test_controls.py",
    "*/e2e/model_free/test_other_models.py",
    "*/e2e/test_algorithms.py",
    "*/integration/stalls/test_endings.py",
    "*/integration/stalls/test_recovery.py",
)
"""Those outside the groups that take a minute or more, the longest first."""


class ByFileAndGroup(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Hands out files, and groups of files as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return group_of(file) or file


def group_of(file: str) -> str | None:
    """The group that a file belongs to."""
    for name, patterns in GROUPS.items():
        if any(fnmatch.fnmatch(file, pattern) for pattern in patterns):
            return name
    return None


def place_of(file: str) -> int:
    """Groups come first, then long files: else all workers wait for the one that gets them last."""
    if group_of(file):
        return 0
    matching = (n for n, pattern in enumerate(LONG_FILES, 1) if fnmatch.fnmatch(file, pattern))
    return next(matching, len(LONG_FILES) + 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which files are handed out."""
    items.sort(key=lambda item: place_of(item.path.as_posix()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Takes the place of xdist's `--dist loadfile`."""
    return ByFileAndGroup(config, log) if config.getvalue("dist") == "loadfile" else None
