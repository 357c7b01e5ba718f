"""Runs jobs of public copies of veRL for three steps, and compares the parts that they bring.

git clone https://github.com/Jiayi-Pan/TinyZero copies/Jiayi-Pan+TinyZero
python -m benchmarks.fork_runs copies [--work FOLDER] [NAME ...]

Each script is converted with a tiny model and rows of its own layout, and takes three steps of
`trinity run`. The rewards of its samples must be those that the copy's manager gives to all of them
as one padded batch, in a process with the copy as `verl`. Advantages and losses are compared by
`benchmarks.verl_functions`. Values must be equal bit by bit.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM

from benchmarks.verl_functions import compared, imported
from examples.addition.model import save_model
from trinity.rewards.verl_manager import import_of_copy

STEPS, ROWS, MAX_LENGTH = 3, 8, 1024
IMITATION_STEPS = 40
PROMPT = "1+2="
TEXT = "Assistant: <think>1+2</think><answer>\\boxed{3}</answer>#### 3"
"""An answer that most rewards read."""
VERL_KEYS = (
    "data.train_batch_size=4",
    "data.max_prompt_length=64",
    "data.max_response_length=80",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=1",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "trainer.logger=console",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.test_freq=-1",
    "trainer.total_epochs=3",
    "trainer.total_training_steps=3",
)
HERE = (
    "cluster.gpu_per_node=0",
    f"model.max_model_len={MAX_LENGTH}",
    "explorer.rollout_model.dtype=float32",
    "explorer.rollout_model.enforce_eager=true",
    "explorer.eval_on_startup=false",
    "trainer.dtype=float32",
    "monitor.monitor_type=none",
)
"""Keys that a machine without GPUs has to change."""


@dataclass(frozen=True, slots=True)
class ForkJob:
    """A script of a copy of veRL, and a row that its reward can score."""

    script: str
    data_source: str = "openai/gsm8k"
    ground_truth: Any = "3"
    right: str = TEXT
    wrong: str = TEXT.replace("3", "4")
    here: tuple[str, ...] = ()
    """Keys of the job: another reward where its own asks a service."""
    env: tuple[str, ...] = ()
    """Variables that the script takes from its environment."""


JOBS = {
    "Jiayi-Pan+TinyZero": ForkJob(
        "scripts/train_tiny_zero.sh",
        "countdown",
        {"target": 3, "numbers": [1, 2]},
        "Assistant: <answer>1 + 2</answer>",
        "Assistant: <answer>1 * 2</answer>",
        env=("EXPERIMENT_NAME=three-steps",),
    ),
    "Unakar+Logic-RL": ForkJob("scripts/train_reinforce_plus_4gpu_7Binstruct.sh"),
    "GAIR-NLP+ToRL": ForkJob("scripts/torl_1.5b.sh"),
    "sunblaze-ucb+Intuitor": ForkJob("verl-intuitor/scripts_ray/run_grpo_math_qwen25-7b.sh"),
    "Tongyi-Zhiwen+QwenLong-L1": ForkJob("scripts/rl_4nodes_dapo.sh"),
    "LLM360+Reasoning360": ForkJob(
        "scripts/train/example_multinode_rl_qwen2.5_32b_base_fsdp.sh", env=("SLURM_JOB_ID=1",)
    ),
    "AMAP-ML+Tree-GRPO": ForkJob(
        "train_multihopqa_grpo.sh",
        "hotpotqa",
        {"target": ["3"]},
        "<|im_start|>assistant <think>1+2</think><answer>3</answer>",
        "<|im_start|>assistant <think>1+2</think><answer>4</answer>",
    ),
    "agentica-project+rllm": ForkJob(
        "scripts/pipeline/minibatch_pipeline.sh",
        here=("buffer.explorer_input.default_reward_fn_type=math_reward",),
    ),
    "hkust-nlp+Laser": ForkJob("scripts/training/laser-d-1.5b/laser-d-1.5b-l1024.sh"),
    "Infini-AI-Lab+GRESO": ForkJob("train-scripts/math_qwen_7b_dm_greso.sh"),
    "wizard-III+ArcherCodeR": ForkJob("scripts/train/run_archer_qwen2.5_1.5b_code.sh"),
}


def main() -> None:
    """Prints a row of the table for each job; exits with 1 if one fails or differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("copies", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--work", type=Path, default=Path("fork_runs"))
    parser.add_argument("--no-run", action="store_true", help="compare without three steps")
    parser.add_argument("--scores", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    copies, work = options.copies.resolve(), options.work.resolve()
    if options.scores:
        print(json.dumps(scores(JOBS[options.names[0]], work / options.names[0])))
        return
    print(f"| repository | commit | taken | steps | compared | equal |\n{'| --- ' * 6}|")
    for name in options.names or JOBS:
        print(row_of(copies, name, work / name, runs=not options.no_run), flush=True)


def row_of(copies: Path, name: str, work: Path, *, runs: bool) -> str:
    """Converts and runs a job, and compares its parts; a run of before is compared, too."""
    if runs or not work.exists():
        convert_job(JOBS[name], copies / name, work, IMITATION_STEPS if runs else 0)
    if runs:
        plugins = ["--plugin-dir", "job_parts"] if (work / "job_parts").is_dir() else []
        here = (*HERE, f"checkpoint_root_dir={work}/checkpoints", *JOBS[name].here)
        typed(work, "run", "job.yaml", *plugins, "--max-steps", str(STEPS), *here)
    commit = said(["git", "rev-parse", "--short=8", "HEAD"], copies / name)
    cells = [name.replace("+", "/"), commit, *compare(copies, name, work)]
    return f"| {' | '.join(cells)} |"


def convert_job(job: ForkJob, copy: Path, work: Path, steps: int) -> None:
    """Writes a model and rows, and the job of a script."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    write_model(job, work / "model", steps)
    rows = [row(job, index) for index in range(ROWS)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), work / "rows.parquet")
    files = [f"data.{key}_files={work}/rows.parquet" for key in ("train", "val")]
    models = [f"{key}.model.path={work}/model" for key in ("actor_rollout_ref", "critic")]
    env = [word for each in job.env for word in ("--env", each)]
    words = [str(copy / job.script), *env, *VERL_KEYS, *files, *models]
    typed(work, "config", "from-verl", *words, "-o", "job.yaml")


def compare(copies: Path, name: str, work: Path) -> Iterator[str]:
    """Yields the parts that were taken, the steps, the values, and whether all are equal."""
    parts = [
        (kind.lower(), part)
        for path in sorted((work / "job_parts").glob("*.py"))
        for kind in ("Advantage", "Loss", "Reward")
        if (part := getattr(imported(path.read_text()), kind, None)) is not None
    ]
    yield ", ".join(f"{kind} `{place_of(part)}`" for kind, part in parts)
    summary = next((work / "checkpoints").rglob("summary.json"), None)
    steps = json.loads(summary.read_text())["stages"][0]["rewards"] if summary else []
    yield str(len(steps))
    equal, kinds = [], {kind for kind, _ in parts}
    if kinds & {"advantage", "loss"}:
        equal += compared(copies / name / JOBS[name].script)
    if "reward" in kinds and not JOBS[name].here:
        if summary is not None:
            typed(work, "export", "samples.parquet", "--job-dir", str(summary.parent))
        words = [sys.executable, "-m", __spec__.name, str(copies), name, "--scores"]
        printed = said([*words, "--work", str(work.parent)], work)
        here, there = json.loads(printed.splitlines()[-1])
        equal.append(here == there)
        yield f"{len(here)} rewards of {min(here):.3g} to {max(here):.3g}"
    else:
        yield "tensors"
    yield "yes" if equal and all(equal) else "no"


def place_of(part: Any) -> str:
    """The function, or the manager with its module."""
    return ".".join(part.place.split(".")[-2:]) if hasattr(part, "place") else str(part.name)


def scores(job: ForkJob, work: Path) -> tuple[list[float], list[float]]:
    """The rewards of a run's samples, or of two answers, here and as one padded batch there."""
    reward = imported((work / "job_parts/verl_parts.py").read_text()).Reward()
    if (samples := work / "samples.parquet").exists():
        recorded = pyarrow.parquet.read_table(samples).to_pylist()
        here = [each["reward"] for each in recorded]
        pairs = [
            (each["tokens"][: each["prompt_length"]], each["tokens"][each["prompt_length"] :])
            for each in recorded
        ]
        rows = [row(job, each["task_index"]) for each in recorded]
    else:
        rows, tokenizer = [row(job, 0)] * 2, AutoTokenizer.from_pretrained(work / "model")
        pairs = [answered(tokenizer, text) for text in (job.right, job.wrong)]
        here = [
            reward(response="", response_token=answer, messages=asked(), task=rows[0])["score"]
            for _, answer in pairs
        ]
    reward._load()
    columns = {name: np.array([each[name] for each in rows], dtype=object) for name in rows[0]}
    data = import_of_copy("verl").DataProto.from_dict(padded(pairs), columns)
    scored = reward._manager(data)
    tensor = scored["reward_tensor"] if isinstance(scored, dict) else scored
    return here, [float(each) for each in tensor.sum(-1)]


def padded(pairs: list[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
    """veRL's batch: prompts padded on their left, answers on their right."""
    asked_for, answers = (max(map(len, each)) for each in zip(*pairs, strict=True))
    spaces = [(asked_for - len(prompt), answers - len(answer)) for prompt, answer in pairs]
    ids = [
        [0] * left + prompt + answer + [0] * right
        for (left, right), (prompt, answer) in zip(spaces, pairs, strict=True)
    ]
    masks = [
        [0] * left + [1] * (asked_for + answers - left - right) + [0] * right
        for left, right in spaces
    ]
    ids_BT = torch.tensor(ids)
    return {
        "prompts": ids_BT[:, :asked_for],
        "responses": ids_BT[:, asked_for:],
        "input_ids": ids_BT,
        "attention_mask": torch.tensor(masks),
    }


def write_model(job: ForkJob, folder: Path, steps: int) -> None:
    """Writes a model that answers right about every other time."""
    save_model(folder, seed=5)
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text())
        longest = {"max_position_embeddings", "model_max_length"} & values.keys()
        (folder / name).write_text(json.dumps(values | dict.fromkeys(longest, MAX_LENGTH)))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    pairs = [answered(tokenizer, text) for text in (job.right, job.wrong)]
    tokens_BT = padded(pairs)["input_ids"]
    first = tokens_BT.shape[1] - max(len(answer) for _, answer in pairs)
    labels_BT = tokens_BT.masked_fill(padded(pairs)["attention_mask"] == 0, -100)
    labels_BT[:, :first] = -100
    for _ in range(steps):
        model(input_ids=tokens_BT, labels=labels_BT).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def answered(tokenizer: PreTrainedTokenizerBase, answer: str) -> tuple[list[int], list[int]]:
    """The tokens of the prompt and of an answer."""
    prompt = tokenizer.apply_chat_template(asked(), tokenize=False, add_generation_prompt=True)
    texts = (str(prompt), f"{answer}{tokenizer.eos_token}")
    first, last = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    return first, last


def asked() -> list[dict[str, str]]:
    """The messages of a row."""
    return [{"role": "user", "content": PROMPT}]


def row(job: ForkJob, index: int) -> dict[str, Any]:
    """A row of veRL's layout."""
    return {
        "data_source": job.data_source,
        "prompt": asked(),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": job.ground_truth},
        "extra_info": {"split": "train", "index": index},
    }


def typed(folder: Path, *words: str) -> str:
    """Runs a command of `trinity` in a folder."""
    return said([sys.executable, "-m", "trinity.cli.main", *words], folder)


def said(words: list[str], folder: Path) -> str:
    """Runs a command, and returns what it printed."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path.strip(os.pathsep)}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
