"""Which worker gets which files of tests: those that share something costly stay together.

A file is one worker's, and so are the files of one group: else each worker would import vLLM, or
verl and torch, or start a stack, which takes longer than most of these tests do.
"""

import fnmatch

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

GROUPS = {
    "engines": (
        "*/integration/explorer/test_engine*.py",
        "*/integration/explorer/test_auxiliary_engines.py",
        "*/integration/explorer/test_held_answers.py",
        "*/integration/explorer/test_serving.py",
        "*/integration/explorer/test_transfers.py",
    ),
    "undisturbed": ("*/e2e/test_results.py", "*/e2e/test_retrain.py"),
    "learners": ("*/integration/trainer/test_[!s]*.py",),
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
            "varieties",
        )
    ),
    "model-free arena": ("*/chaos/test_exploring.py", "*/chaos/test_sync_styles.py"),
    "shared stack": tuple(
        f"*/model_free/test_{name}.py"
        for name in ("episodes", "explorer_keys", "model_free", "stored_bytes")
    ),
}
"""By what they share: vLLM, a run that has ended, verl, a stack to kill at, one to leave alone."""


class ByFileAndGroup(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Hands out files, and groups of files as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        for name, patterns in GROUPS.items():
            if any(fnmatch.fnmatch(file, pattern) for pattern in patterns):
                return name
        return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Where files are handed out."""
    return ByFileAndGroup(config, log) if config.getvalue("dist") == "loadfile" else None
