"""The batches that a run has stored give the same weights again, with the real trainer."""

import json

import pytest

import trinity
from tests.e2e.conftest import Launch
from tests.e2e.launched import CONFIG, Launched

pytestmark = pytest.mark.timeout(900)

ONE_RANK = "trainer: {{dtype: float32}}"
TWO_RANKS = "trainer: {{dtype: float32, rank_num: 2}}"


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
def test_stored_rows_of_data_give_the_same_weights_again(undisturbed: Launched) -> None:
    printed = retrain(undisturbed, "--stage", "warmup", "--steps", "1..20")
    assert "[warmup] version 20 has the same weights as before, bit for bit" in printed


@pytest.mark.thorough
def test_two_ranks_give_the_same_weights_again_from_a_checkpoint_on(launch: Launch) -> None:
    assert ONE_RANK in CONFIG
    run = launch("two-ranks", CONFIG.replace(ONE_RANK, TWO_RANKS))
    run.start()
    assert run.wait() == 0, run.text
    printed = retrain(run, "--steps", "7..8")
    assert "[rft] version 8 has the same weights as before, bit for bit" in printed
    for job_dir in (run.job_dir, run.job_dir / "retrained" / "rft-7-8"):
        parts = (job_dir / "stages/rft/checkpoints").rglob("shards/1-0.safetensors")
        assert list(parts), f"{job_dir} was trained by two ranks"


@pytest.mark.thorough
def test_what_cannot_be_trained_again_says_why(undisturbed: Launched) -> None:
    done = undisturbed.ask("retrain", "--steps", "3..8")
    assert done.returncode == 1
    assert "there is no checkpoint of step 2 to begin step 3 from" in done.stderr


@pytest.mark.thorough
def test_a_run_is_evaluated_and_trained_again_from_python(undisturbed: Launched) -> None:
    run = trinity.Run.from_config(undisturbed.config)
    assert run.retrain(1, 2, name="from-python").steps == 2
    evaluated = run.evaluate({"explorer.bench_on_latest_checkpoint": True})
    assert evaluated.final_evaluation is not None and evaluated.final_evaluation.version == 8
