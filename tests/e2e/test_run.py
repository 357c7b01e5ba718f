"""A run does what it promises, and ends in the same weights whatever is killed on the way."""

import json
import random
import signal
import stat
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.launched import CONFIG, Launched

pytestmark = pytest.mark.timeout(400)


def test_a_run_leaves_its_results(undisturbed: Launched) -> None:
    summary = undisturbed.summary()
    assert summary["state"] == "finished"
    assert summary["steps"] == 28
    final = summary["final_evaluation"]
    assert isinstance(final, dict)
    assert (final["stage"], final["version"]) == ("rft", 8)
    assert final["metrics"]["digits"]["n"] == 64
    for left in ("curves.png", "config.json", "monitor/tensorboard/rft", "log/trainer.log"):
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


def test_whatever_is_killed_the_run_ends_in_the_same_weights(
    launch: Launch, undisturbed: Launched
) -> None:
    run = launch("killed")
    run.start()
    victims = ["explorer", "trainer", "buffer", "rank", "synchronizer", "nats", "postgres"]
    random.Random(11).shuffle(victims)
    for version, victim in enumerate(victims):
        run.wait_until(partial(run.has_version, "rft", version), f"version {version}")
        run.kill(victim)
    assert run.wait() == 0, run.text
    for victim in set(victims) - {"rank"}:
        assert f"restarted {victim}" in run.text
    assert run.rewards() == undisturbed.rewards()
    assert run.final_weights() == undisturbed.final_weights()


def test_a_killed_launcher_leaves_nothing_and_resumes_at_both_stages(
    launch: Launch, undisturbed: Launched
) -> None:
    run = launch("launcher-killed")
    run.start()
    run.wait_until(lambda: run.has_checkpoint("warmup"), "checkpoint of the first stage")
    run.signal(signal.SIGKILL)
    run.wait()
    run.wait_for_nothing_left()
    run.start()
    run.wait_until(lambda: run.has_version("rft", 4), "version 4")
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run.text
    assert "trinity run --config" in run.text.splitlines()[-1]
    assert run.left_running() == []
    run.start()
    assert run.wait() == 0, run.text
    assert "[warmup] finished before, skipped" in run.text
    assert run.rewards() == undisturbed.rewards()
    assert run.final_weights() == undisturbed.final_weights()


def test_a_finished_run_says_so_when_started_again(undisturbed: Launched) -> None:
    before, weights = undisturbed.text, undisturbed.final_weights()
    undisturbed.start()
    assert undisturbed.wait() == 0
    again = undisturbed.text[len(before) :]
    assert "is finished" in again
    assert "starting the broker" not in again
    assert undisturbed.final_weights() == weights


def test_a_run_that_cannot_go_on_says_why_and_resumes_when_mended(
    launch: Launch, tmp_path: Path
) -> None:
    flag = tmp_path / "broken"
    flag.touch()
    old = "default_reward_fn_type: tests.e2e.rewards.DigitsReward"
    new = "default_reward_fn_type: tests.e2e.rewards.BrokenReward"
    args = f"        taskset:\n          reward_fn_args: {{{{broken_while: {flag}}}}}\n"
    patient = "explorer:\n  max_retry_times: 0\n"
    config = CONFIG.replace(old, new).replace("        taskset:\n", args)
    config = config.replace("explorer:\n", patient, 1)
    config = config.replace(
        "eval_tasksets:\n          - name: held_out",
        f"""eval_tasksets:
          - name: held_out
            reward_fn_args: {{{{broken_while: {flag}}}}}""",
    )
    run = launch("broken", config)
    run.start()
    assert run.wait() == 1, run.text
    assert "the grader is broken" in run.text.splitlines()[-1]
    assert "log" in run.text.splitlines()[-1]
    assert run.left_running() == []
    flag.unlink()
    run.start()
    assert run.wait() == 0, run.text


def test_a_run_uses_the_broker_and_the_database_that_it_is_given(
    launch: Launch, undisturbed: Launched, nats_url: str, postgres_dsn: str
) -> None:
    run = launch("given")
    run.start(TRINITY_NATS_URL=nats_url, TRINITY_POSTGRES_DSN=postgres_dsn)
    assert run.wait() == 0, run.text
    assert not (run.job_dir / "infra/postgres").exists()
    assert not (run.job_dir / "infra/nats").exists()
    assert run.final_weights() == undisturbed.final_weights()


def test_status_without_a_run_names_the_directory(undisturbed: Launched) -> None:
    status = undisturbed.ask("status")
    assert status.returncode == 2
    assert str(undisturbed.job_dir) in status.stderr


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
