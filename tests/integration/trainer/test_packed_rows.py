"""Rows without padding: each is computed as it would be alone, whatever lies beside it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import (
    Build,
    assert_close,
    assert_same,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch, random_pairs
from trinity.config.plan.arithmetic import Arithmetic
from trinity.config.plan.stage_plan import StagePlan

BATCH = random_batch(16, seed=5)
PAIRS = random_pairs(9, seed=3)
GRPO = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "k2"}
CASES: dict[str, tuple[Mapping[str, object], TrainBatch]] = {
    "actor and reference": (GRPO, BATCH),
    "critic": ({"algorithm_type": "ppo"}, BATCH),
    "entropy": ({**GRPO, "entropy_loss_fn_args": {"entropy_coef": 0.1}}, BATCH),
    "discriminator": ({**GRPO, "advantage_fn": "clipv"}, BATCH),
    "squared probabilities": ({**GRPO, "advantage_fn": "optimal_token_baseline"}, BATCH),
    "sft": ({"algorithm_type": "sft"}, random_batch(12, seed=2)),
    "pairs": ({"algorithm_type": "dpo"}, PAIRS),
}


def plan_of(
    model: Path, algorithm: Mapping[str, object], *, packed: bool, max_tokens: int = 8192
) -> StagePlan:
    trainer = {"use_remove_padding": packed, "max_token_len_per_gpu": max_tokens}
    return make_plan(model, algorithm, trainer)


@pytest.mark.parametrize("case", CASES)
def test_packed_rows_give_the_gradients_of_padded_ones_however_they_are_cut(
    learner_of: Build, model: Path, case: str
) -> None:
    algorithm, batch = CASES[case]
    padded = gradients_of(learner_of(plan_of(model, algorithm, packed=False)), batch)
    for max_tokens in (8192, 64):
        plan = plan_of(model, algorithm, packed=True, max_tokens=max_tokens)
        learner = learner_of(plan)
        workers = [learner._roles.actor.worker]
        if learner._roles.critic is not None:
            workers.append(learner._roles.critic._worker)
        assert all(worker.engine.model_config.use_remove_padding for worker in workers)
        assert_close(padded, gradients_of(learner, batch))


def test_a_row_that_sees_its_neighbour_is_found(
    learner_of: Build, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the comparison above fails if attention does not stop where a row begins."""
    padded = gradients_of(learner_of(plan_of(model, GRPO, packed=False)), BATCH)
    monkeypatch.setattr(
        "services.trainer.backend.packed_attention.runs_of", lambda lengths: ((sum(lengths), 1),)
    )
    mixed = gradients_of(learner_of(plan_of(model, GRPO, packed=True)), BATCH)
    with pytest.raises(AssertionError, match="Not equal"):
        assert_close(padded, mixed)


def test_packed_logprobs_are_those_of_transformers_for_each_row_alone(
    learner_of: Build, model: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from services.trainer.learner.prepared_batch import PreparedBatch

    prepared = PreparedBatch.from_batch(BATCH)
    actor = learner_of(plan_of(model, GRPO, packed=True))._roles.actor
    found_BT = actor.compute_outputs(prepared, ["logprobs"])["logprobs"]
    alone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for number, row in enumerate(BATCH.rows):
        tokens = torch.from_numpy(row.tokens.astype(np.int64))
        with torch.no_grad():
            logprobs = alone(input_ids=tokens[None]).logits[0].log_softmax(-1)
        expected = logprobs[:-1].gather(-1, tokens[1:, None])[:, 0][row.prompt_length - 1 :]
        found = found_BT[number, : row.response_length]
        np.testing.assert_allclose(found, expected.numpy(), atol=2e-5)


def test_the_same_packed_step_twice_is_the_same_bit_for_bit(learner_of: Build, model: Path) -> None:
    plan = plan_of(model, GRPO, packed=True, max_tokens=64)
    left, right = learner_of(plan), learner_of(plan)
    assert stepped(left, BATCH)["actor/loss"] == stepped(right, BATCH)["actor/loss"]
    assert_same(weights_of(left), weights_of(right))


def test_a_run_that_began_before_rows_were_packed_keeps_its_bits(
    learner_of: Build, model: Path
) -> None:
    begun = plan_of(model, GRPO, packed=True, max_tokens=80)
    begun = begun.model_copy(update={"arithmetic": Arithmetic()})
    resumed = learner_of(begun)
    padded = learner_of(plan_of(model, GRPO, packed=False, max_tokens=80))
    assert not resumed._roles.actor.worker.engine.model_config.use_remove_padding
    for learner in (resumed, padded):
        stepped(learner, BATCH)
    assert_same(weights_of(resumed), weights_of(padded))


def test_the_padding_of_a_pass_is_measured(learner_of: Build, model: Path) -> None:
    packed, padded = (
        stepped(learner_of(plan_of(model, GRPO, packed=is_packed)), BATCH)
        for is_packed in (True, False)
    )
    counted = sum(row.length for row in BATCH.rows)
    computed = len(BATCH.rows) * max(row.length for row in BATCH.rows)
    assert packed["perf/padding_share"] == 0.0
    assert padded["perf/padding_share"] == pytest.approx(1 - counted / computed)
    assert packed["perf/num_micro_batches"] == padded["perf/num_micro_batches"] == 1
