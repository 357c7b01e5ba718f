"""What a run leaves behind, and what is said when it is over."""

import json
import stat
from urllib.parse import urlsplit

import pytest

from tests.e2e.launched import Launched
from tests.support.notebooks import run_notebook

pytestmark = pytest.mark.timeout(900)


def test_a_run_leaves_its_results(undisturbed: Launched) -> None:
    summary = undisturbed.summary()
    assert summary["state"] == "finished"
    assert summary["steps"] == 28
    final = summary["final_evaluation"]
    assert isinstance(final, dict)
    assert (final["stage"], final["version"]) == ("rft", 8)
    assert final["metrics"]["digits"]["n"] == 64
    shown = f"monitor/tensorboard/{undisturbed.job_dir.name}/rft_trainer"
    for left in ("curves.png", "config.json", shown, "log/trainer.log"):
        assert (undisturbed.job_dir / left).exists(), left


def test_a_run_prints_three_decoded_samples_with_their_rewards(undisturbed: Launched) -> None:
    before_training = undisturbed.text.partition("[rft] step 1/")[0]
    assert before_training.count("(reward ") == 3


def test_a_run_leaves_nothing_running(undisturbed: Launched) -> None:
    assert undisturbed.left_running() == []


def test_evaluations_are_at_the_start_at_intervals_and_at_the_end(undisturbed: Launched) -> None:
    stages = undisturbed.summary()["stages"]
    assert isinstance(stages, list)
    assert [done["version"] for done in stages[-1]["evaluations"]] == [0, 4, 8]


def test_the_final_weights_are_a_model_that_transformers_loads(undisturbed: Launched) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = (undisturbed.job_dir / "stages/rft/weights").glob("v8-*")
    directory = str(next(iter(found)))
    model = AutoModelForCausalLM.from_pretrained(directory)
    assert AutoTokenizer.from_pretrained(directory).vocab_size == model.config.vocab_size


def test_a_finished_run_says_so_when_started_again(undisturbed: Launched) -> None:
    before, weights = undisturbed.text, undisturbed.final_weights()
    undisturbed.start()
    assert undisturbed.wait() == 0
    again = undisturbed.text[len(before) :]
    assert "is finished" in again
    assert "starting the broker" not in again
    assert undisturbed.final_weights() == weights


def test_status_of_a_run_that_has_ended_says_so_and_where_it_is(undisturbed: Launched) -> None:
    status = undisturbed.ask("status")
    assert status.returncode == 0, status.stderr
    assert "finished" in status.stdout.splitlines()[0]
    assert str(undisturbed.job_dir) in status.stdout


def test_no_secret_stands_in_a_log(undisturbed: Launched) -> None:
    files = list((undisturbed.job_dir / "infra/secrets").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    secrets = [secret for path in files for secret in _secrets_in(path.read_text().strip())]
    assert len(secrets) > len(files)
    logs = "".join(path.read_text() for path in (undisturbed.job_dir / "log").glob("*.log"))
    assert not [secret for secret in secrets if secret in logs]
    assert not [secret for secret in secrets if secret in json.dumps(undisturbed.summary())]


def _secrets_in(text: str) -> list[str]:
    """The text itself, and the password alone where it is an address with one."""
    password = urlsplit(text).password if "://" in text else None
    return [text, password] if password else [text]


async def test_the_notebook_that_trains(undisturbed: Launched) -> None:
    """On a run that is finished: a start shows its results again."""
    names = run_notebook("train.ipynb", CONFIG=str(undisturbed.config))
    assert names["report"].experiments[0].state == "finished"
    assert names["results"].best_evaluation.taskset == "held_out"
    assert len(names["samples"]) == 200
