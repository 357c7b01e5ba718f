"""The cost of the loss code beside the train step it is part of, at 33 million parameters.

python -m benchmarks.loss_share [--steps 3] [--json FILE]

The step is the trainer's own, with random weights and rows. The loss code is a policy loss with the
divergence from a reference and the entropy, their sums, figures and backward passes down to the
log-probabilities, on tensors of the shapes that the step's micro-batches have; where a loss treats
some tokens apart, also their selection.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.gang import join_alone
from benchmarks.table import PerformanceClaim, print_claims
from services.trainer.learner.advantages import select_tokens
from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.types import TrainBatch, TrainRow
from tests.unit.trainer.builders import make_plan
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.entropy.default import default as entropy_loss
from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.kl.estimators import low_var_kl
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss, PolicyLossFn
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.algorithm.token_selection.selection_batch import TokenSelectionFn

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 8192
NUM_ROWS, PROMPT, RESPONSE = 16, 32, 96
ROWS_PER_PART = 8
"""Of a micro-batch."""
NUM_UNCOUNTED = 1
NUM_REPEATS = 20
AIM = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/loss_share.json")
    arguments = parser.parse_args()
    num_parameters, step = _train_step_seconds(arguments.steps)
    parts = [_random_part(seed) for seed in range(NUM_ROWS // ROWS_PER_PART)]
    seconds = {
        name: _loss_seconds(POLICY_LOSSES.get(name), parts) for name in POLICY_LOSSES.names()
    }
    for name in TOKEN_SELECTIONS.names():
        seconds[name] += _selection_seconds(TOKEN_SELECTIONS.get(name))
    slowest = max(seconds, key=lambda name: seconds[name])
    print(f"train step of {num_parameters / 1e6:.1f} million parameters: {step:.3f} s")
    for name, value in seconds.items():
        print(f"  {name:20} {1e3 * value:6.2f} ms  {100 * value / step:5.2f} %")
    claims = [
        PerformanceClaim(
            f"loss code over train step, slowest ({slowest})", seconds[slowest] / step, AIM, "<="
        ),
        PerformanceClaim("loss code over train step, ppo", seconds["ppo"] / step, AIM, "<="),
    ]
    print_claims(claims)
    record = {
        "num_parameters": num_parameters,
        "train_step_seconds": step,
        "loss_seconds": seconds,
        "claims": [claim.as_json() for claim in claims],
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def _train_step_seconds(num_steps: int) -> tuple[int, float]:
    """The model's size and the median of its steps."""
    ranks = join_alone(num_threads=len(os.sched_getaffinity(0)))
    from services.trainer.learner.learner import Learner

    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        num_parameters = _write_model(model)
        plan = make_plan(
            model,
            {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "none"},
            {"max_token_len_per_gpu": ROWS_PER_PART * (PROMPT + RESPONSE)},
        )
        learner = Learner(plan=plan, model_directory=model, ranks=ranks)
        batch = _random_batch()
        seconds = [
            _seconds_of(lambda: learner.train_step(batch, 1e-6))
            for _ in range(num_steps + NUM_UNCOUNTED)
        ]
    return num_parameters, statistics.median(seconds[NUM_UNCOUNTED:])


def _write_model(directory: Path) -> int:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1664,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(directory)
    return int(model.num_parameters())


def _random_batch() -> TrainBatch:
    draw = np.random.default_rng(0)
    rows = [
        TrainRow(
            position=position,
            tokens=draw.integers(2, VOCABULARY, PROMPT + RESPONSE).astype(np.int32),
            prompt_length=PROMPT,
            mask=np.ones(RESPONSE, dtype=np.bool_),
            rollout_logprobs=draw.normal(-9, 0.2, RESPONSE).astype(np.float32),
            advantages=np.full(RESPONSE, draw.normal(), dtype=np.float32),
        )
        for position in range(NUM_ROWS)
    ]
    return TrainBatch(step=1, rows=rows, metrics={}, replayed=False)


def _random_part(seed: int) -> PolicyInputs:
    generator = torch.Generator().manual_seed(seed)
    shape = (ROWS_PER_PART, RESPONSE)

    def noise() -> torch.Tensor:
        return 0.2 * torch.randn(shape, generator=generator)

    return PolicyInputs(
        logprobs_BT=(noise() - 9).requires_grad_(),
        old_logprobs_BT=noise() - 9,
        advantages_BT=noise(),
        mask_BT=torch.ones(shape, dtype=torch.bool),
        reference_logprobs_BT=noise() - 9,
        is_expert_B=torch.arange(ROWS_PER_PART) % 4 == 0,
        chosen_BT=noise() > 0.4,
    )


def _loss_seconds(policy_loss: PolicyLossFn, parts: list[PolicyInputs]) -> float:
    """Returns the seconds of all micro-batches of a step, as the median over repeats."""

    def once() -> None:
        for part in parts:
            _whole_loss(policy_loss, part).backward()

    once()
    return statistics.median(_seconds_of(once) for _ in range(NUM_REPEATS))


def _selection_seconds(select: TokenSelectionFn) -> float:
    """Returns the seconds of selecting tokens of a whole batch, which some losses do."""
    prepared = PreparedBatch.from_batch(_random_batch())
    prepared = replace(prepared, policy={"logprobs": prepared.rollout_logprobs_BT})
    return statistics.median(
        _seconds_of(lambda: select_tokens(select, prepared, seed=1)) for _ in range(NUM_REPEATS)
    )


def _whole_loss(policy_loss: PolicyLossFn, part: PolicyInputs) -> torch.Tensor:
    assert part.reference_logprobs_BT is not None
    num_experts = NUM_ROWS // 4
    totals = BatchTotals(
        num_tokens=NUM_ROWS * RESPONSE,
        num_sequences=NUM_ROWS,
        max_response_tokens=RESPONSE,
        num_expert_tokens=num_experts * RESPONSE,
        num_expert_sequences=num_experts,
    )
    policy = policy_loss(part)
    metric_contributions(policy, part, totals)
    divergence_BT = low_var_kl(part.logprobs_BT, part.reference_logprobs_BT)
    divergence = PolicyLoss(name="kl_loss", loss_BT=divergence_BT)
    entropy = entropy_loss(
        EntropyInputs(entropy_BT=-part.logprobs_BT, mask_BT=part.mask_BT), entropy_coef=0.1
    )
    losses = (policy, divergence, entropy)
    return torch.stack(
        [loss_contribution(loss, part, totals, "token-mean") for loss in losses]
    ).sum()


def _seconds_of(action: Callable[[], object]) -> float:
    """Returns processor seconds, which other work on the machine does not change."""
    began = time.process_time()
    action()
    return time.process_time() - began


if __name__ == "__main__":
    main()
