"""Algorithms with a critic, with expert rows and with a correction train through the services."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, Launch
from tests.e2e.launched import Launched
from tests.support.config_reads.recorded import recorded

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

CONFIG = """
project: e2e
name: {name}
checkpoint_root_dir: {root}/checkpoints
seed: 5
model:
  model_path: {root}/made/model
  max_prompt_tokens: 16
  max_response_tokens: 6
buffer:
  batch_size: 8
  explorer_input:
    default_workflow_type: simple_workflow
    default_reward_fn_type: tests.e2e.rewards.DigitsReward
    taskset:
      path: {root}/made/data/train.jsonl
      format: &columns {{prompt_key: question, response_key: answer}}
explorer:
  eval_on_startup: false
  eval_interval: 100
  rollout_model: {{dtype: float32, enforce_eager: true}}
trainer: {{dtype: float32, save_interval: 100, total_steps: 3}}
stages:
  - stage_name: critic
    algorithm: {{algorithm_type: ppo, repeat_times: 4, optimizer: {{lr: 1.0e-4}}}}
    trainer: {{critic_warmup: 1}}
  - stage_name: experts
    algorithm:
      algorithm_type: mix
      repeat_times: 4
      sample_strategy_args: {{expert_data_ratio: 0.2, sft_dataset_name: shown}}
      optimizer: {{lr: 1.0e-4}}
    buffer:
      train_batch_size: 40
      trainer_input:
        auxiliary_buffers:
          shown:
            storage_type: file
            path: {root}/made/data/sft.jsonl
            format: {{prompt_type: plaintext, prompt_key: question, response_key: answer}}
            data_selector: {{selector_type: shuffle}}
  - stage_name: ahead
    algorithm:
      algorithm_type: grpo
      repeat_times: 4
      bypass_old_logprobs: false
      rollout_correction: {{rollout_is: token}}
      optimizer: {{lr: 1.0e-4}}
    synchronizer: {{sync_offset: 1}}
  - stage_name: labelled
    mode: train
    algorithm: {{algorithm_type: kto, optimizer: {{lr: 3.0e-4}}}}
    buffer:
      train_batch_size: 64
      trainer_input:
        experience_buffer:
          storage_type: file
          path: {root}/labelled.jsonl
          format: {{prompt_type: plaintext, prompt_key: prompt, response_key: completion}}
    trainer: {{total_steps: 6}}
"""
Steps = dict[int, dict[str, float]]
HOOK = REPOSITORY / "tests/support/config_reads/hook"


@pytest.fixture(scope="module")
def trained(launch: Launch) -> Iterator[Launched]:
    run = launch("algorithms", CONFIG)
    shown = map(json.loads, (run.config.parent / "made/data/sft.jsonl").read_text().splitlines())
    rows = [
        {"prompt": row["question"], "completion": row["answer"] if label else "0", "label": label}
        for number, row in enumerate(shown)
        for label in [number % 2 == 0]
    ]
    (run.config.parent / "labelled.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run.reads.mkdir()
    run.start(
        TRINITY_TEST_CONFIG_READS=str(run.reads),
        PYTHONPATH=os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")]),
    )
    assert run.wait() == 0, run.text
    yield run


def figures(run: Launched, stage: str) -> Steps:
    """What a stage's monitor shows, by train step; `stage` is empty for the only one of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    steps: Steps = {}
    root, own = run.job_dir / "monitor/tensorboard", run.job_dir.name
    for role in ("explorer", "trainer"):
        folder: Path = root / own / f"{stage}_{role}" if stage else root / f"{own}_{role}"
        shown = EventAccumulator(str(folder)).Reload()
        for name in shown.Tags()["scalars"]:
            for one in shown.Scalars(name):
                steps.setdefault(one.step, {})[name] = one.value
    return steps


def test_a_critic_learns_before_the_policy_and_beside_it(trained: Launched) -> None:
    steps = figures(trained, "critic")
    assert len(steps) == 3
    for shown in steps.values():
        assert shown["critic/vf_loss"] > 0 and shown["critic/grad_norm"] > 0
        assert shown["critic/values/min"] < shown["critic/values/max"]
    assert ["actor/pg_loss" in steps[step] for step in (1, 2, 3)] == [False, True, True]


def test_expert_rows_stand_in_every_batch_and_are_imitated(trained: Launched) -> None:
    steps = figures(trained, "experts")
    assert len(steps) == 3
    for shown in steps.values():
        assert (shown["sample/num_expert_rows"], shown["train/num_rows"]) == (8, 40)
        assert shown["train/num_trained_rows"] == 40
        assert shown["sample/model_version_drift/max"] == 0
    losses = [steps[step]["actor/expert/sft_loss"] for step in (1, 2, 3)]
    assert losses[-1] < losses[0]


def test_labelled_rows_without_pairs_teach_which_answers_are_good(trained: Launched) -> None:
    steps = figures(trained, "labelled")
    assert [shown["train/num_rows"] for shown in steps.values()] == [128] * 6, (
        "each with another row's answer"
    )
    assert steps[6]["actor/kto_loss"] < steps[1]["actor/kto_loss"] <= 0.5


def test_rollouts_of_older_weights_are_corrected_and_shown_by_their_lag(trained: Launched) -> None:
    steps = figures(trained, "ahead")
    assert [steps[step]["sample/model_version_drift/max"] for step in (1, 2, 3)] == [0, 1, 1]
    lags = [[lag for lag in "01" if f"off_policy/lag_{lag}/tokens" in steps[step]]
            for step in (1, 2, 3)]  # fmt: skip
    assert lags == [["0"], ["1"], ["1"]]
    late = steps[3]
    assert late["off_policy/lag_1/ratio/p99"] > 1 > late["off_policy/lag_1/ratio/p01"]
    assert late["rollout_corr/rollout_is_max"] > 1 > late["rollout_corr/rollout_is_min"]
    assert late["actor/ppo_kl"] == 0, "the policy's ratio starts from the trainer's own"


def test_what_the_services_read_is_what_the_configurations_page_says(trained: Launched) -> None:
    said = json.loads((REPOSITORY / "trinity/config/docs/readers.json").read_text())
    read = recorded(trained.reads)
    assert {"StagePlan.algorithm", "TrainerConfig.dtype", "BufferConfig.batch_size"} <= read.keys()
    news = {
        key: sorted(set(readers) - {"planning"} - set(said.get(key, [])))
        for key, readers in read.items()
    }
    assert {key: readers for key, readers in news.items() if readers} == {}
