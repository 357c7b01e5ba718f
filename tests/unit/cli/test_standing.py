"""`trinity status` tells where a run stands that has stopped."""

import json
from pathlib import Path

import pytest

from tests.unit.progress.builders import changed, empty_view, trained
from tests.unit.source_names import ROOT
from trinity.api.v1 import synchronizer_pb2
from trinity.cli.ls import ls
from trinity.cli.status import status
from trinity.errors import UserError
from trinity.run.diagnosis.rules import Diagnosis, DiagnosisState
from trinity.run.progress.summary import summarize, write_summary
from trinity.run.reports import REPORTS, StatusReport, schema_text, why_report
from trinity.run.state import state_of


def stopped_run(job_dir: Path) -> None:
    stages = [{"name": "sft", "total_train_steps": 400}, {"name": "rft"}]
    (job_dir / "config.json").write_text(json.dumps({"label": "sums/first", "stages": stages}))
    for step in (50, 200):
        (job_dir / f"stages/sft/checkpoints/step-{step}-1").mkdir(parents=True)
    (job_dir / "stages/sft/checkpoints/step-300-1.partial").mkdir()


def leave(job_dir: Path, state: str, reason: str = "") -> None:
    summary = summarize(
        empty_view(), label="sums/first", state=state, reason=reason, starts=1, seconds={"total": 9}
    )
    write_summary(summary, job_dir / "summary.json")


def test_of_a_run_that_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_run(tmp_path)
    status(None, tmp_path)
    said = capsys.readouterr().out
    assert "sums/first  stopped: `trinity run` goes on with it" in said
    assert "sft  newest checkpoint: step 200 of 400" in said
    assert "rft  no checkpoint yet" in said


def test_of_a_run_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_run(tmp_path)
    leave(tmp_path, "failed", "the grader is broken")
    status(None, tmp_path)
    assert "failed: the grader is broken" in capsys.readouterr().out


def test_of_a_run_that_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_run(tmp_path)
    leave(tmp_path, "finished")
    status(None, tmp_path)
    said = capsys.readouterr().out
    assert "sums/first  finished" in said
    assert "0 train steps on 0 experiences (0 tokens) in 9 s" in said


def test_where_nothing_was_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run is going on"):
        status(None, tmp_path)


def test_settings_that_were_changed_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_run(tmp_path)
    view = empty_view()
    view.apply(changed(1, "rft", 4))
    summary = summarize(
        view, label="sums/first", state="finished", reason="", starts=2, seconds={"total": 9}
    )
    write_summary(summary, tmp_path / "summary.json")
    status(None, tmp_path)
    said = capsys.readouterr().out
    assert "rft  changed algorithm.optimizer.lr: 1e-06 -> 0.5 from step 4" in said


def test_a_stopped_run_is_told_as_json_by_the_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_run(tmp_path)
    status(None, tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["is_running"], told["experiments"][0]["state"]) == (False, "stopped")
    assert [stage["newest_checkpoint"] for stage in told["experiments"][0]["stages"]] == [200, None]
    assert StatusReport.model_validate(told)
    leave(tmp_path, "failed", "the grader is broken")
    status(None, tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["experiments"][0]["reason"] == "the grader is broken"


def test_the_stage_that_failed_is_told_apart_from_those_before_and_behind_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = [{"name": name} for name in ("sft", "rft", "bench")]
    (tmp_path / "config.json").write_text(json.dumps({"label": "a", "stages": stages}))
    view = empty_view()
    for event in (trained(1, "sft", 1), trained(2, "rft", 1)):
        view.apply(event)
    summary = summarize(view, label="a", state="failed", reason="x", starts=1, seconds={"total": 9})
    write_summary(summary, tmp_path / "summary.json")
    status(None, tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)["experiments"][0]["stages"]
    assert [stage["state"] for stage in told] == ["finished", "failed", "pending"]


def test_why_is_told_as_json() -> None:
    verdict = Diagnosis(state=DiagnosisState.HELD, cause="c", text="t", notes=("n",))
    wait = synchronizer_pb2.ClosedWait(
        owner="trainer",
        waits_for="buffer",
        reason="no batch",
        waited_seconds=4,
        ended_seconds_ago=9,
        stage="rft",
        experiment_id="e1",
        role=synchronizer_pb2.ROLE_TRAINER,
    )
    elsewhere = synchronizer_pb2.ClosedWait(experiment_id="e2", role=synchronizer_pb2.ROLE_TRAINER)
    running = synchronizer_pb2.Experiment(id="e1", state=synchronizer_pb2.EXPERIMENT_STATE_RUNNING)
    status = synchronizer_pb2.GetStatusResponse(
        experiments=[running], closed_waits=[wait, elsewhere]
    )
    found = state_of(status, "the buffer does not answer")
    told = json.loads(why_report(verdict, found).model_dump_json())
    assert told == {
        "state": "held",
        "is_healthy": False,
        "cause": "c",
        "text": "t",
        "owner": "",
        "notes": ["n"],
        "ended_waits": [
            {
                "role": "trainer",
                "owner": "trainer",
                "waits_for": "buffer",
                "reason": "no batch",
                "waited_seconds": 4.0,
                "ended_seconds_ago": 9.0,
                "stage": "rft",
                "experiment_id": "e1",
            }
        ],
    }


@pytest.mark.parametrize("name", REPORTS)
def test_the_schemas_in_the_docs_are_those_of_the_code(name: str) -> None:
    written = (ROOT / f"docs/schemas/{name}.json").read_text(encoding="utf-8")
    assert written == schema_text(REPORTS[name]), "run python -m trinity.run.reports docs/schemas"


def test_ls_lists_runs_with_their_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for name in ("first", "second"):
        (tmp_path / "sums" / name).mkdir(parents=True)
        stopped_run(tmp_path / "sums" / name)
    leave(tmp_path / "sums" / "second", "failed", "the disk is full")
    ls(tmp_path)
    rows = capsys.readouterr().out.splitlines()
    [first] = [row for row in rows if "first" in row]
    [second] = [row for row in rows if "second" in row]
    assert "stopped" in first and "failed" in second
    with pytest.raises(UserError, match="no run was started below"):
        ls(tmp_path / "elsewhere")
