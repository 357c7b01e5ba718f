"""A parquet file as veRL's own script writes it is trained on as it is: imitation, then GRPO."""

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.e2e.conftest import Launch

pytestmark = pytest.mark.timeout(900)

CONFIG = """
project: e2e
name: {name}
checkpoint_root_dir: {root}/checkpoints
seed: 5
model: {{model_path: {root}/made/model, max_prompt_tokens: 16, max_response_tokens: 10}}
explorer:
  rollout_model: {{dtype: float32, enforce_eager: true}}
trainer: {{dtype: float32}}
stages:
  - stage_name: warmup
    mode: train
    algorithm: {{algorithm_type: sft, optimizer: {{lr: 3.0e-3}}}}
    buffer:
      train_batch_size: 16
      trainer_input:
        experience_buffer:
          storage_type: file
          path: {root}/verl/train.parquet
          format: {{prompt_type: plaintext, response_key: extra_info.answer}}
    trainer: {{total_steps: 40}}
  - stage_name: rft
    mode: both
    algorithm: {{algorithm_type: grpo, repeat_times: 4, optimizer: {{lr: 1.0e-4}}}}
    buffer:
      batch_size: 8
      explorer_input:
        taskset:
          path: {root}/verl/train.parquet
          format: {{response_key: reward_model.ground_truth, reward_fn_key: data_source}}
    trainer: {{total_steps: 4}}
"""


def row(index: int) -> dict[str, object]:
    """A row with the columns and types of veRL's gsm8k.py."""
    number = index % 8
    question, solution = f"{number}+{number}=", str(2 * number)
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": solution},
        "extra_info": {
            "split": "train",
            "index": index,
            "answer": f"#### {solution}",
            "question": question,
        },
    }


def write_rows(file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    table = pyarrow.Table.from_pylist([row(index) for index in range(64)])
    pyarrow.parquet.write_table(table, file)


def test_rows_of_verl_are_imitated_explored_scored_and_trained_on(launch: Launch) -> None:
    run = launch("verl-rows", CONFIG)
    write_rows(run.config.parent / "verl" / "train.parquet")
    run.start()
    assert run.wait() == 0, run.text
    rewards = run.rewards()
    assert len(rewards) == 4
    assert max(rewards) > 0.1, run.text
    assert run.has_version("rft", 4)
