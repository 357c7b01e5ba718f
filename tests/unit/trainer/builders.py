"""Models, plans and batches small enough for a test."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from services.trainer.types import PairSide, RunReward, TrainBatch, TrainRow
from trinity.algorithm.token_advantage.token_batch import IntVector
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config

VOCABULARY = 48
GROUP_SIZE = 4
DATA_ALGORITHMS = frozenset({"sft", "cpt", "dpo", "ipo", "orpo", "simpo"})
TAUGHT_ALGORITHMS = frozenset(
    {"on_policy_distill", "sdpo", "grpo_distill", "jsd", "jensen_shannon"}
)
PAIR: tuple[PairSide, PairSide] = ("chosen", "rejected")


def save_tiny_model(
    directory: Path, seed: int = 0, num_layers: int = 2, num_kv_heads: int = 2
) -> Path:
    """A random Qwen2 of 50 thousand parameters, without a tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


def save_tiny_mixture(directory: Path, seed: int = 0, vocabulary: int = VOCABULARY) -> Path:
    """A random Qwen3-MoE: three layers, of which the second has no experts, two of five each."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=5,
        num_experts_per_tok=2,
        mlp_only_layers=[1],
        norm_topk_prob=True,
        max_position_embeddings=128,
        initializer_range=0.2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3MoeForCausalLM(config).save_pretrained(directory)
    return directory


def with_random_experts(batch: TrainBatch, *, every: int = 1) -> TrainBatch:
    """The batch with experts of the tiny mixture for each `every`th row, as an engine says them."""
    generator = np.random.default_rng(7)

    def routes(row: TrainRow) -> np.ndarray[tuple[int, ...], np.dtype[np.int16]]:
        chosen = [
            [generator.permutation(5)[:2] + 1 for _ in range(3)] for _ in range(row.response_length)
        ]
        return np.array(chosen, dtype=np.int16)

    rows = [
        replace(row, routed_experts=routes(row)) if number % every == 0 else row
        for number, row in enumerate(batch.rows)
    ]
    return replace(batch, rows=rows)


def grpo_plan(model: Path, **algorithm: object) -> StagePlan:
    """A grpo stage on that model."""
    return make_plan(model, {"algorithm_type": "grpo", "repeat_times": 8, **algorithm})


def make_plan(
    model: Path,
    algorithm: Mapping[str, object],
    trainer: Mapping[str, object] | None = None,
    model_section: Mapping[str, object] | None = None,
    *,
    has_rows: bool = False,
) -> StagePlan:
    """The one stage of an experiment with these sections."""
    is_data = has_rows or algorithm["algorithm_type"] in DATA_ALGORITHMS
    is_taught = algorithm["algorithm_type"] in TAUGHT_ALGORITHMS
    workflow = "self_distill_workflow" if is_taught else "math_workflow"
    taskset = {"name": "tasks", "path": str(model), "default_workflow_type": workflow}
    data = {"experience_buffer": {"name": "rows", "storage_type": "file", "path": str(model)}}
    source = {"trainer_input": data} if is_data else {"explorer_input": {"taskset": taskset}}
    config = Config.model_validate(
        {
            "mode": "train" if is_data else "both",
            "checkpoint_root_dir": str(model.parent / "checkpoints"),
            "algorithm": {"optimizer": {"lr": 1e-3}, **algorithm},
            "model": {
                "model_path": str(model),
                "max_prompt_tokens": 16,
                "max_response_tokens": 16,
                **(model_section or {}),
            },
            "trainer": {
                "dtype": "float32",
                "rank_num": 1,
                "max_token_len_per_gpu": 8192,
                **(trainer or {}),
            },
            "cluster": {"node_num": 1, "gpu_per_node": 0},
            "buffer": {"batch_size": 2, "train_batch_size": 16, "total_steps": 1000, **source},
        }
    )
    return plan_experiment(config).stages[0]


def random_batch(num_rows: int, seed: int = 0, step: int = 1, max_response: int = 12) -> TrainBatch:
    """Rows of all lengths, with gaps in their masks, in groups of four with rewards of 0 and 1."""
    generator = np.random.default_rng(seed)
    rows = [_random_row(position, generator, max_response) for position in range(num_rows)]
    rewards = generator.integers(0, 2, num_rows)
    rewarded = [
        replace(
            row,
            run_reward=RunReward(
                assignment_id=f"task {row.position // GROUP_SIZE}",
                run=row.position % GROUP_SIZE,
                reward=float(reward),
            ),
            versions=np.full(
                row.response_length, max(step - 1 - row.position % 3, 0), dtype=np.int32
            ),
        )
        for row, reward in zip(rows, rewards, strict=True)
    ]
    return TrainBatch(step=step, rows=rewarded, metrics={}, replayed=False)


def grouped(batch: TrainBatch) -> TrainBatch:
    """Gives the rows of a group the prompt of its first row."""
    rows = []
    for number, row in enumerate(batch.rows):
        first = batch.rows[number // GROUP_SIZE * GROUP_SIZE]
        prompt, answer = first.tokens[: first.prompt_length], row.tokens[row.prompt_length :]
        tokens = np.concatenate([prompt, answer])
        rows.append(replace(row, tokens=tokens, prompt_length=first.prompt_length))
    return replace(batch, rows=rows)


def random_pairs(num_pairs: int, seed: int = 0, step: int = 1) -> TrainBatch:
    """Two answers of different lengths to each of the prompts, the better one first."""
    generator = np.random.default_rng(seed)
    rows: list[TrainRow] = []
    for position in range(num_pairs):
        prompt = generator.integers(2, VOCABULARY, int(generator.integers(2, 9)))
        for side in PAIR:
            answer = generator.integers(2, VOCABULARY, int(generator.integers(2, 12)))
            rows.append(data_row(position, prompt, answer, side))
    return TrainBatch(step=step, rows=rows, metrics={}, replayed=False)


def data_row(
    position: int, prompt: IntVector, answer: IntVector, side: PairSide | None = None
) -> TrainRow:
    """A row of training data."""
    return TrainRow(
        position=position,
        tokens=np.concatenate([prompt, answer]).astype(np.int32),
        prompt_length=len(prompt),
        mask=np.ones(len(answer), dtype=np.bool_),
        rollout_logprobs=np.zeros(len(answer), dtype=np.float32),
        advantages=np.zeros(len(answer), dtype=np.float32),
        side=side,
    )


def _random_row(position: int, generator: np.random.Generator, max_response: int) -> TrainRow:
    prompt = int(generator.integers(2, 9))
    response = int(generator.integers(2, max_response + 1))
    mask = generator.random(response) < 0.8
    mask[-1] = True
    return TrainRow(
        position=position,
        tokens=generator.integers(2, VOCABULARY, prompt + response).astype(np.int32),
        prompt_length=prompt,
        mask=mask,
        rollout_logprobs=generator.normal(-3.9, 0.2, response).astype(np.float32),
        advantages=np.full(response, generator.normal(), dtype=np.float32),
    )
