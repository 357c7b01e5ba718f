"""How `trinity deploy submit` ends where nobody answers, which is no end of the experiment."""

import gc
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.builders import stage
from tests.unit.deploy.manifests import deployment_of
from trinity.cli.main import NO_ANSWER, main
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.deploy import submission

SECONDS = 1.0


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address where nobody listens, and little patience."""
    monkeypatch.setattr(submission, "START_SECONDS", SECONDS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def taking() -> ExperimentPlan:
    """One that trains on what another run has stored, for which it is asked first."""
    rows = {"trainer_input": {"experience_buffer": {"source_run": "explored"}}}
    stages = (stage(mode="train", buffer=rows),)
    plan: ExperimentPlan = deployment_of("addition").plan.model_copy(update={"stages": stages})
    return plan


@pytest.mark.parametrize("plan", [deployment_of("addition").plan, taking()], ids=["own", "taking"])
def test_that_nobody_answers_has_an_exit_code_of_its_own(
    plan: ExperimentPlan,
    nobody: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is told from an experiment that failed, which is not submitted again."""
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    places = ["--synchronizer", nobody, "--buffer", nobody]
    command: list[Any] = ["trinity", "deploy", "submit", "--plan", tmp_path / "plan.json", *places]
    monkeypatch.setattr(sys, "argv", [str(one) for one in command])
    monkeypatch.setattr(gc, "set_threshold", lambda _: None)
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == NO_ANSWER
    assert f"the synchronizer at {nobody} did not answer within {SECONDS:.0f} s" in (
        capsys.readouterr().err
    )
