"""`trinity.Run` starts a run that outlives it, stops it, and returns its results."""

import os
from pathlib import Path

import pytest

import trinity
from tests.e2e.conftest import Launch
from tests.e2e.launched import CONFIG
from trinity.errors import RunFailed
from trinity.run.runs import launcher_pid

pytestmark = pytest.mark.timeout(900)

SUPERVISED = CONFIG.partition("  - stage_name: rft")[0]
NUM_STEPS = 20


def test_a_run_is_started_stopped_found_again_and_goes_on_to_its_end(launch: Launch) -> None:
    config = launch("from-python", SUPERVISED).config
    run = trinity.Run.from_config(config, {"stages[0].trainer.total_steps": 200})
    run.start()
    report = next(run.follow())
    assert report.is_running and report.experiments[0].label == "e2e/from-python"
    run.stop()
    assert launcher_pid(Path(str(run.location))) is None
    assert run.status().experiments[0].state == "stopped"
    with pytest.raises(RunFailed, match="has no results: it was stopped"):
        run.wait()
    shorter = trinity.Run.from_config(config, {"name": "from-python-2"})
    shorter.start()
    found = trinity.Run.attach(str(shorter.location))
    states = [report.experiments[0].state for report in found.follow(0.5)]
    assert states[-1] != "running"
    assert shorter.wait().steps == NUM_STEPS
    assert found.status().experiments[0].state == "finished"


def test_what_hinders_a_start_is_its_error(launch: Launch, tmp_path: Path) -> None:
    config = launch("not-startable", SUPERVISED).config
    run = trinity.Run.from_config(config, {"model.model_path": str(tmp_path / "nowhere")})
    with pytest.raises(RunFailed, match="nowhere"):
        run.start()
    assert not os.path.exists(str(run.location)) or launcher_pid(Path(str(run.location))) is None
