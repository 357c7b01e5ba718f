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
          path: {root}/verl/demonstrations.parquet
          on_bad_row: skip
          format:
            prompt_type: plaintext
            response_key: extra_info.answer
            chat_template: >-
              {{% for message in messages %}}{{% if message['content'] == 'refuse' %}}
              {{{{- raise_exception('not this') -}}}}
              {{% endif %}}<|{{{{ message['role'] }}}}|>{{{{ message['content'] }}}}<|end|>
              {{%- endfor %}}{{% if add_generation_prompt %}}<|assistant|>{{% endif %}}
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


def write_rows(folder: Path) -> None:
    """Writes tasks, and demonstrations of which one lacks an answer and one a template refuses."""
    folder.mkdir(exist_ok=True)
    rows = [row(index) for index in range(64)]
    without_answer = {**row(5), "extra_info": {"answer": None, "index": 5}}
    refused = {**row(6), "prompt": [{"role": "user", "content": "refuse"}]}
    demonstrations = [*rows[:8], without_answer, refused, *rows[8:]]
    for name, some in (("train", rows), ("demonstrations", demonstrations)):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(some), folder / f"{name}.parquet")


def test_rows_of_verl_are_imitated_explored_scored_and_trained_on(launch: Launch) -> None:
    run = launch("verl-rows", CONFIG)
    write_rows(run.config.parent / "verl")
    run.start()
    assert run.wait() == 0, run.text
    assert "1 of 66 rows of experience_buffer are left out: `on_bad_row: skip`" in run.text
    assert "[warmup] warning at step 1: 1 rows have no token to train on" in run.text
    rewards = run.rewards()
    assert len(rewards) == 4
    assert max(rewards) > 0.1, run.text
    assert run.has_version("rft", 4)
