"""A stage's environment variables are there for its workflows, and gone with the stage."""

import os

import pytest

from services.explorer.control.stage import WorkflowEnvironment


def test_variables_of_a_stage_replace_those_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRINITY_TEST_THERE", "before")
    monkeypatch.delenv("TRINITY_TEST_NEW", raising=False)
    environment = WorkflowEnvironment()
    environment.set({"TRINITY_TEST_THERE": 7, "TRINITY_TEST_NEW": True})
    assert (os.environ["TRINITY_TEST_THERE"], os.environ["TRINITY_TEST_NEW"]) == ("7", "True")
    environment.set({"TRINITY_TEST_NEW": "x"})
    assert (os.environ["TRINITY_TEST_THERE"], os.environ["TRINITY_TEST_NEW"]) == ("before", "x")
    environment.set({})
    assert "TRINITY_TEST_NEW" not in os.environ
