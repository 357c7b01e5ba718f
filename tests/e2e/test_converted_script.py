"""A script of veRL for GSM8K, converted and run with veRL's own parquet, learns.

Its model answers in the form of GSM8K, `#### 5`, and is right about every other time: imitation of
such answers makes it. What it then learns, it can only learn from the rewards that the rows choose
by their `data_source`.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pyarrow
import pyarrow.parquet
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from tests.e2e.conftest import REPOSITORY, Launch

pytestmark = [pytest.mark.timeout(2400), pytest.mark.thorough]

SCRIPT = """\
set -x
rows=${ROWS:-$HOME/data/gsm8k}

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files="$rows/train.parquet" \\
    data.val_files="$rows/test.parquet" \\
    data.train_batch_size=16 \\
    data.max_prompt_length=16 \\
    data.max_response_length=10 \\
    data.filter_overlong_prompts=True \\
    data.truncation='error' \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.optim.lr=1e-3 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=64 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=8 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.ref.fsdp_config.param_offload=True \\
    trainer.logger='["console","tensorboard"]' \\
    trainer.project_name='gsm8k' \\
    trainer.experiment_name='converted' \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.save_freq=-1 \\
    trainer.test_freq=16 \\
    trainer.total_epochs=15 "$@"
"""
HERE = (
    "cluster.gpu_per_node=0",
    "explorer.rollout_model.dtype=float32",
    "explorer.rollout_model.enforce_eager=true",
    "trainer.dtype=float32",
    "trainer.total_steps=16",
)
"""What a machine without GPUs has to change."""
NUM_SUMS, NUM_ROWS = 16, 64
IMITATION_STEPS, IMITATION_ROWS = 60, 16
Row = dict[str, object]


def row(index: int, split: str) -> Row:
    """A row with the columns and types of veRL's gsm8k.py."""
    first, second = divmod(index % NUM_SUMS, 4)
    question, answer = f"{first}+{second}=", str(first + second)
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {
            "split": split,
            "index": index,
            "answer": f"{question}{answer}\n#### {answer}",
            "question": question,
        },
    }


def hesitant_texts(tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> list[tuple[str, str]]:
    """Prompts and answers of which about a half are one too large."""
    found = []
    for index in rng.sample(range(NUM_SUMS), IMITATION_ROWS):
        messages = row(index, "train")["prompt"]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        answer = sum(divmod(index, 4)) + (rng.random() < 0.5)
        found.append((str(prompt), f"#### {answer}{tokenizer.eos_token}"))
    return found


def imitate(model_path: Path, to: Path) -> None:
    """Trains a model on such answers, and writes it beside its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rng = random.Random(5)
    for _ in range(IMITATION_STEPS):
        loss = imitation_loss(model, tokenizer, hesitant_texts(tokenizer, rng))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)


def imitation_loss(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, texts: list[tuple[str, str]]
) -> torch.Tensor:
    rows = [[tokenizer.encode(text, add_special_tokens=False) for text in pair] for pair in texts]
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens_BT = torch.full((len(rows), longest), int(tokenizer.pad_token_id or 0))
    labels_BT = torch.full_like(tokens_BT, -100)
    for number, (prompt, answer) in enumerate(rows):
        tokens_BT[number, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels_BT[number, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    loss: torch.Tensor = model(input_ids=tokens_BT, labels=labels_BT).loss
    return loss


def write_what_a_user_has(folder: Path, untrained: Path) -> None:
    """Writes the script, the rows and the model."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "run_gsm8k.sh").write_text(SCRIPT)
    for split in ("train", "test"):
        table = pyarrow.Table.from_pylist([row(index, split) for index in range(NUM_ROWS)])
        pyarrow.parquet.write_table(table, folder / f"{split}.parquet")
    imitate(untrained, folder / "model")


def typed(folder: Path, *words: str) -> str:
    """A command of `trinity` in the user's folder; returns what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "trinity.cli.main", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def accuracy(summary: dict[str, dict[str, dict[str, dict[str, float]]]], which: str) -> float:
    return summary[f"{which}_evaluation"]["metrics"]["accuracy"]["mean"]


def test_a_converted_script_learns_on_rows_of_verl(launch: Launch, tmp_path: Path) -> None:
    made = launch("converted").config.parent / "made"
    folder = tmp_path / "user"
    write_what_a_user_has(folder, made / "model")
    given = (f"actor_rollout_ref.model.path={folder}/model", "--env", f"ROWS={folder}")
    said = typed(
        folder, "config", "from-verl", "run_gsm8k.sh", *given, "--sync-offset", "0", "-o", "my.yaml"
    )
    assert "Without counterpart here" not in said
    typed(folder, "config", "check", "my.yaml", *HERE)
    said = typed(folder, "run", "my.yaml", *HERE)
    summary = json.loads((folder / "checkpoints/gsm8k/converted/summary.json").read_text())
    rewards = summary["stages"][0]["rewards"]
    assert len(rewards) == 16, said
    assert 0.2 < mean(rewards[:2]) < 0.6, "right answers and wrong ones to learn from"
    assert mean(rewards[-3:]) > mean(rewards[:2]) + 0.25, said
    assert accuracy(summary, "final") > accuracy(summary, "first") + 0.2, said
