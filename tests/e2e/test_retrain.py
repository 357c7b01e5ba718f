"""The batches that a run has stored give the same weights again, with the real trainer."""

import json

import pytest

import trinity
from tests.e2e.launched import Launched

pytestmark = pytest.mark.timeout(900)


def retrain(run: Launched, *options: str) -> str:
    done = run.ask("retrain", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_stored_batches_give_the_same_weights_again(undisturbed: Launched) -> None:
    printed = retrain(undisturbed, "--steps", "1..8")
    assert "[rft] version 8 has the same weights as before, bit for bit" in printed
    folder = undisturbed.job_dir / "retrained" / "rft-1-8"
    [weights] = (folder / "stages/rft/weights").glob("v8-*")
    manifest = json.loads((weights / "manifest.json").read_text())
    assert manifest["weights_blake3"] == undisturbed.final_weights()
    assert "explorer" not in printed


@pytest.mark.thorough
def test_a_run_is_evaluated_and_trained_again_from_python(undisturbed: Launched) -> None:
    run = trinity.Run.from_config(undisturbed.config)
    assert run.retrain(1, 2, name="from-python").steps == 2
    evaluated = run.evaluate({"explorer.bench_on_latest_checkpoint": True})
    assert evaluated.final_evaluation is not None and evaluated.final_evaluation.version == 8
