"""A run from Python says what it cannot do where it is."""

from pathlib import Path

import pytest

from tests.unit.source_names import ROOT
from trinity.errors import UserError
from trinity.run.handle import Run
from trinity.run.places import Deployment

ADDITION = ROOT / "examples" / "addition" / "addition.yaml"
AFAR = Deployment(synchronizer="127.0.0.1:1", buffer="127.0.0.1:2")


def test_the_last_stage_that_trains_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.from_config(ADDITION)._run
    assert run._mode_key() == "stages[1].mode"
    monkeypatch.setenv("TRINITY_MODEL_PATH", "model")
    alone = Run.from_config(ROOT / "examples" / "gsm8k" / "gsm8k.yaml")._run
    assert alone._mode_key() == "mode"


def test_a_run_of_a_deployment_is_not_started_or_stopped_from_here() -> None:
    run = Run.attach(AFAR)
    for call in (run.start, run.stop, run.wait, lambda: run.retrain(1, 2)):
        with pytest.raises(UserError, match="is for runs of this machine"):
            call()


def test_overrides_that_training_again_would_not_see_are_refused(tmp_path: Path) -> None:
    run = Run.from_config(ADDITION, {"checkpoint_root_dir": str(tmp_path)})
    with pytest.raises(UserError, match="write the overrides into it"):
        run.retrain(1, 2)
