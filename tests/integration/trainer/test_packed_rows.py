"""Rows without padding: each is computed as it would be alone, whatever lies beside it."""

from collections.abc import Mapping
from pathlib import Path

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
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.arithmetic import Arithmetic
from trinity.config.plan.stage_plan import StagePlan

BATCH = random_batch(16, seed=5)
GRPO = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "k2"}
CASES: dict[str, tuple[Mapping[str, object], TrainBatch]] = {
    "discriminator": ({**GRPO, "advantage_fn": "clipv"}, BATCH),
    "squared probabilities": ({**GRPO, "advantage_fn": "optimal_token_baseline"}, BATCH),
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
        assert learner._roles.actor.worker.engine.model_config.use_remove_padding
        assert_close(padded, gradients_of(learner, batch))


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
