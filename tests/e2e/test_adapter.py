"""A run that trains an adapter learns through all services, and survives a kill bit for bit."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.launched import CONFIG, Launched
from tests.e2e.test_algorithms import figures
from tests.e2e.test_transfers import BY_COLLECTIVE, num_received

pytestmark = pytest.mark.timeout(900)

NUM_STEPS = 8

ADAPTER = """
    model: {{min_response_tokens: 0, lora_configs: [{{lora_rank: 8, lora_alpha: 16}}]}}
    algorithm:
      algorithm_type: grpo
      repeat_times: 4
      kl_loss_fn: k2
      optimizer: {{lr: 2.0e-3}}
"""
WHOLE = "    algorithm: {{algorithm_type: grpo, repeat_times: 4, optimizer: {{lr: 1.0e-4}}}}\n"


@pytest.fixture(scope="module")
def config() -> str:
    before, whole, after = CONFIG.partition(WHOLE)
    assert whole
    return before + ADAPTER.lstrip("\n") + after


@pytest.fixture(scope="module")
def trained(launch: Launch, config: str) -> Launched:
    run = launch("adapter", config)
    run.start()
    assert run.wait() == 0, run.text
    return run


def test_an_adapter_learns_what_the_reward_asks_for(trained: Launched) -> None:
    rewards = trained.rewards()
    assert sum(rewards[-3:]) > sum(rewards[:3]), rewards


def test_engines_say_of_the_merged_weights_what_the_trainer_says_of_the_adapter(
    trained: Launched,
) -> None:
    steps = figures(trained, "rft")
    for step in range(1, NUM_STEPS + 1):
        for figure in ("p01", "p99"):
            assert steps[step][f"off_policy/ratio/{figure}"] == pytest.approx(1.0, abs=1e-3)
    assert steps[1]["actor/kl_loss"] < 1e-9, "the reference is the model that the adapter begins as"
    assert steps[NUM_STEPS]["actor/kl_loss"] > 1e-6


def test_its_files_are_small_and_the_last_version_is_a_whole_model(trained: Launched) -> None:
    stage = trained.job_dir / "stages/rft"
    newest = max((stage / "checkpoints").glob("step-*"), key=step_of)
    settings = json.loads((newest / "lora_adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (8, 16)
    whole = max((stage / "weights").glob("v*-*/model.safetensors")).stat().st_size
    adapter = (newest / "lora_adapter/adapter_model.safetensors").stat().st_size
    assert adapter < whole / 4


@pytest.mark.thorough
def test_a_killed_run_whose_weights_go_from_memory_ends_in_the_same_adapter(
    launch: Launch, config: str, trained: Launched
) -> None:
    run = launch("adapter-killed", config + BY_COLLECTIVE)
    run.start()
    for version, victim in ((2, "rank"), (4, "explorer"), (6, "trainer")):
        run.wait_until(partial(run.has_version, "rft", version), f"version {version}")
        run.kill(victim)
    assert run.wait() == 0, run.text
    assert (run.rewards(), run.final_weights()) == (trained.rewards(), trained.final_weights())
    assert num_received(run), "merged weights go like any others"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.split("-")[1])
