"""A vision model over real services: imitation, then GRPO, with images from file to gradient."""

import math
import re
from pathlib import Path

import pytest

from examples.squares.prepare import prepare
from tests.e2e.launched import Launched

pytestmark = pytest.mark.timeout(2400)
REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples/squares/squares.yaml"
SHORT = """
project: e2e
name: {name}
checkpoint_root_dir: {root}/checkpoints
seed: 5
model:
  model_path: {root}/made/model
  max_prompt_tokens: 40
  max_response_tokens: 4
  min_response_tokens: 0
explorer: {{rollout_model: {{dtype: float32, enforce_eager: true}}}}
trainer: {{dtype: float32}}
stages:
  - stage_name: warmup
    mode: train
    algorithm: {{algorithm_type: sft, optimizer: {{lr: 1.0e-3}}}}
    buffer:
      train_batch_size: 16
      trainer_input:
        experience_buffer:
          storage_type: file
          path: {root}/made/data/sft.jsonl
          format: &columns
            prompt_type: plaintext
            prompt_key: question
            response_key: answer
            image_key: images
    trainer: {{total_steps: 6}}
  - stage_name: rft
    mode: both
    algorithm: {{algorithm_type: grpo, repeat_times: 4, optimizer: {{lr: 1.0e-3}}}}
    buffer:
      batch_size: 4
      explorer_input:
        default_workflow_type: simple_workflow
        default_reward_fn_type: exact_match_reward
        taskset: {{path: {root}/made/data/train.jsonl, format: *columns}}
    trainer: {{total_steps: 4}}
"""
CHANCE = 1 / 6


def test_engine_and_rank_see_the_same_images_after_each_change_of_weights(tmp_path: Path) -> None:
    prepare(tmp_path / "made", seed=5)
    run = Launched(tmp_path, "short", REPOSITORY, SHORT)
    try:
        run.start()
        assert run.wait() == 0, run.text
    finally:
        run.end()
    gaps = trainer_scalars(run, "actor/rollout_logprob_diff_max")
    assert len(gaps) == 4 and max(gaps) < 1e-3, gaps


def trainer_scalars(run: Launched, tag: str) -> list[float]:
    """Values that the trainer of the last stage left for TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: list[float] = []
    for folder in sorted((run.job_dir / "monitor/tensorboard").rglob("*_trainer")):
        events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
        if tag in events.Tags()["scalars"]:
            found += [point.value for point in events.Scalars(tag)]
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("shuffled", [False, True])
def test_squares_are_counted_by_looking_alone(tmp_path: Path, shuffled: bool) -> None:
    work = tmp_path / "work"
    prepare(work, seed=42, shuffled=shuffled)
    run = Launched(tmp_path, "squares", REPOSITORY, "")
    text = EXAMPLE.read_text().replace("project: examples", "project: e2e")
    text = text.replace("${oc.env:TRINITY_SQUARES_WORK,examples/squares/work}", str(work))
    run.config.write_text(
        text.replace(
            "${oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./checkpoints}", f"{tmp_path}/checkpoints"
        )
    )
    try:
        run.start()
        assert run.wait() == 0, run.text
    finally:
        run.end()
    found = re.findall(r"on held_out: accuracy (\S+) \S+ (\S+)", run.text)
    accuracy, error = map(float, found[-1])
    if shuffled:
        assert abs(accuracy - CHANCE) < 3 * max(error, math.sqrt(CHANCE * (1 - CHANCE) / 384))
    else:
        assert float(found[0][0]) < 0.75 and accuracy >= 0.95
