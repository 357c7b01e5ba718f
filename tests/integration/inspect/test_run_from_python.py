"""`trinity.Run` looks into a run that has ended, also where an event loop runs already."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

import trinity
from tests.support.model_free.ended_run import EndedRun
from tests.support.notebooks import run_notebook
from trinity.errors import UserError

pytestmark = pytest.mark.timeout(400)


async def test_an_ended_run_is_looked_into_from_a_notebook(
    ended_run: EndedRun, tmp_path: Path
) -> None:
    """A test that awaits stands for a notebook: its event loop runs, and `Run` does not await."""
    job = tmp_path / "job"
    shutil.copytree(ended_run.untouched, job)
    run = trinity.Run.attach(job)
    report = run.status()
    assert not report.is_running and report.job_dir == str(job)
    assert [state.is_running for state in run.follow()] == [False]
    frame = run.experiences(["step=5"])
    assert len(frame) == 8 and set(frame["train_step"]) == {5}
    assert json.loads(frame["info"].iloc[0]) is not None
    assert len(run.experiences(limit=3, form="datasets")) == 3
    assert run.export(tmp_path / "out.parquet", ["step=5"]) == 8
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").num_rows == 8
    sample = frame["id"].iloc[0]
    assert list(run.feedback({sample: 1.0}).refused) == [sample], "it waits for none"
    with pytest.raises(UserError, match="`from_config` knows how to start it"):
        run.retrain(1, 8)
    with pytest.raises(UserError, match="there is no condition 'stepp'"):
        run.experiences(["stepp=5"])


async def test_the_same_calls_are_awaited(ended_run: EndedRun, tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(ended_run.untouched, job)
    run = trinity.AsyncRun.attach(job)
    assert (await run.status()).experiments[0].label == ended_run.plan.label
    assert (await run.experiences(["step=5"], form="arrow")).num_rows == 8


async def test_the_notebook_that_looks_into_a_run(ended_run: EndedRun, tmp_path: Path) -> None:
    job = tmp_path / "job"
    shutil.copytree(ended_run.untouched, job)
    names = run_notebook("look_into_a_run.ipynb", RUN=str(job))
    assert len(names["samples"]) == 64 and len(names["newest"]) == 8
    assert 0 < len(names["dataset"]) <= 64
