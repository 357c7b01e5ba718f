"""Rows without padding: each is computed as it would be alone, whatever lies beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import (
    Build,
    assert_close,
    assert_same,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch, with_random_experts
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


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("has_experts", [True, False])
def test_ranks_that_share_rows_predict_every_answer_once_by_its_own_experts(
    monkeypatch: pytest.MonkeyPatch, num_ranks: int, has_experts: bool
) -> None:
    from services.trainer.backend.row_engine import _arrange
    from services.trainer.backend.sequence_shards import SequenceShards
    from services.trainer.learner.verl_calls import EngineOutputs, MicroBatchBuilder

    batch = random_batch(5, seed=7)
    batch = with_random_experts(batch) if has_experts else batch
    prepared = PreparedBatch.from_batch(batch)
    builder = MicroBatchBuilder(batch.rows, prepared.layout, packed=True)
    data = builder.build(range(5), {"loss_mask": prepared.mask_BT}, EngineOutputs())
    seen, group = [], Any
    for index in range(num_ranks):
        shards: Any = SequenceShards(group, num_ranks, index) if num_ranks > 1 else None
        monkeypatch.setattr(SequenceShards, "current", lambda shards=shards: shards)
        rows = _arrange(data, False)
        assert rows.row_numbers is not None and rows.token_rows is not None
        assert rows.token_rows[rows.predicting].tolist() == rows.row_numbers.tolist()
        assert (rows.routes is not None) == has_experts
        of_answers = rows.routes[rows.predicting].tolist() if rows.routes is not None else None
        for place, row in enumerate(rows.row_numbers.tolist()):
            experts = None if of_answers is None else of_answers[place]
            seen.append((row, int(rows.labels[place]), experts))
    expected = [
        (number, token, None if row.routed_experts is None else row.routed_experts[place].tolist())
        for number, row in enumerate(batch.rows)
        for place, token in enumerate(row.tokens[row.prompt_length :].tolist())
    ]
    assert sorted(seen, key=lambda found: found[0]) == expected
