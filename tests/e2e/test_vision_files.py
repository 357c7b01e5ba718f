"""Files in the layout of Trinity-RFT's two examples with images, started with a tiny model."""

import io
import random
from pathlib import Path

import datasets
import pytest
from PIL import Image

from examples.squares.pictures import draw
from tests.e2e.conftest import Launch
from tests.e2e.test_algorithms import figures
from tests.support.vision_models import make_vision_model
from trinity.config.check import check_file

pytestmark = pytest.mark.timeout(900)
NUM_STEPS = 2
TASKS = """
      path: {root}/geometry
      subset_name: default
      split: train
      format: {{prompt_key: problem, response_key: answer, image_key: images}}
      rollout_args: {{temperature: 1.0}}
    default_workflow_type: simple_mm_workflow
    default_reward_fn_type: tests.e2e.rewards.DigitsReward
"""
HEAD = """
project: e2e
name: {name}
checkpoint_root_dir: {root}/checkpoints
model: {{model_path: {root}/vision, max_response_tokens: 64, max_model_len: 400}}
cluster: {{node_num: 1, gpu_per_node: 0}}
explorer:
  rollout_model: {{engine_num: 1, enable_prefix_caching: false, enforce_eager: true, seed: 42}}
synchronizer: {{sync_method: nccl, sync_interval: 1, sync_timeout: 1200}}
"""
ALONE = f"""{HEAD}
algorithm: {{{{algorithm_type: grpo, repeat_times: 8}}}}
buffer:
  total_epochs: 1
  batch_size: 4
  train_batch_size: 32
  explorer_input:
    taskset:
      name: geometry{TASKS}
  trainer_input: {{{{experience_buffer: {{{{name: experience_buffer, storage_type: queue}}}}}}}}
trainer:
  trainer_type: verl
  trainer_config_path: {{root}}/train_vlm.yaml
"""
TRAINER = """
actor_rollout_ref:
  model: {enable_gradient_checkpointing: True, use_remove_padding: True}
  actor:
    strategy: fsdp
    use_dynamic_bsz: True
    ppo_max_token_len_per_gpu: 16384
    ulysses_sequence_parallel_size: 1
    optim: {lr: 1e-4, warmup_style: constant}
"""
WITH_EXPERTS = f"""{HEAD}
algorithm:
  algorithm_type: mix_chord
  repeat_times: 8
  entropy_loss_fn: mix
  sample_strategy_args: {{{{expert_data_ratio: 0.2}}}}
  policy_loss_fn_args: {{{{mu_warmup_steps: 2, mu_decay_steps: 4, mu_peak: 0.1, mu_valley: 0.1}}}}
buffer:
  total_epochs: 1
  batch_size: 4
  train_batch_size: 40
  explorer_input:
    taskset:
      name: geometry{TASKS}
  trainer_input:
    experience_buffer: {{{{name: experience_buffer, storage_type: queue}}}}
    auxiliary_buffers:
      sft_dataset:
        storage_type: file
        path: {{root}}/geometry
        split: train
        format:
          prompt_type: plaintext
          prompt_key: problem
          response_key: answer
          image_key: images
trainer: {{{{use_dynamic_bsz: true, max_token_len_per_gpu: 800}}}}
"""


def write_rows(folder: Path) -> None:
    """Rows as a hub keeps them: images of `datasets`, and `<image>` in the text."""
    rng = random.Random(1)
    images = [[Image.open(io.BytesIO(draw(count, rng)))] for count in range(1, 9)]
    rows = {
        "problem": ["<image>How many squares?"] * len(images),
        "answer": [str(count) for count in range(1, 9)],
        "images": images,
    }
    shown = datasets.Features(
        problem=datasets.Value("string"),
        answer=datasets.Value("string"),
        images=datasets.Sequence(datasets.Image()),
    )
    folder.mkdir(exist_ok=True)
    datasets.Dataset.from_dict(rows, features=shown).to_parquet(folder / "train-0.parquet")


@pytest.mark.parametrize(("name", "config"), [("alone", ALONE), ("with-experts", WITH_EXPERTS)])
def test_an_example_with_images_checks_starts_and_trains(
    launch: Launch, name: str, config: str
) -> None:
    run = launch(f"vision-{name}", config)
    root = run.config.parent
    write_rows(root / "geometry")
    make_vision_model(root / "vision")
    (root / "train_vlm.yaml").write_text(TRAINER)
    assert check_file(run.config).errors == ()
    run.start()
    assert run.wait() == 0, run.text
    steps = figures(run, "")
    assert [steps[step]["actor/grad_norm"] > 0 for step in (1, 2)] == [True] * NUM_STEPS
    if config is WITH_EXPERTS:
        assert steps[2]["sample/num_expert_rows"] == 8
