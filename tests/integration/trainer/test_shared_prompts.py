"""Rows that share a prompt: the loss, its gradient and its figures are those of each row whole."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.trainer.types import TrainBatch
from tests.integration.trainer.learners import (
    Arrays,
    Build,
    assert_close,
    assert_same,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import (
    GROUP_SIZE,
    grouped,
    make_plan,
    random_batch,
)
from trinity.config.plan.stage_plan import StagePlan

BATCH = grouped(random_batch(16, seed=5))
GRPO = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "k2"}
CASES: dict[str, tuple[Mapping[str, object], TrainBatch]] = {
    "squared probabilities": ({**GRPO, "advantage_fn": "optimal_token_baseline"}, BATCH),
}


def plan_of(
    model: Path, algorithm: Mapping[str, object] = GRPO, *, shared: bool, **trainer: object
) -> StagePlan:
    return make_plan(model, algorithm, {"use_prefix_grouper": shared, **trainer})


@pytest.mark.parametrize("case", CASES)
def test_shared_prompts_give_the_gradients_of_whole_rows_however_they_are_cut(
    learner_of: Build, model: Path, case: str
) -> None:
    algorithm, batch = CASES[case]
    whole = gradients_of(learner_of(plan_of(model, algorithm, shared=False)), batch)
    chunked = {"entropy_from_logits_with_chunking": True, "enable_gradient_checkpointing": True}
    for more in ({}, {"max_token_len_per_gpu": 64}, chunked):
        learner = learner_of(plan_of(model, algorithm, shared=True, **more))
        assert learner._roles.actor.worker.engine.shares_prompts
        assert_close(whole, gradients_of(learner, batch))


def test_the_same_step_twice_is_the_same_bit_for_bit_and_its_share_is_told(
    learner_of: Build, model: Path
) -> None:
    learners = [learner_of(plan_of(model, shared=True)) for _ in range(2)]
    computed: list[int] = []
    learners[0]._roles.actor.worker.engine.module.register_forward_pre_hook(
        lambda _module, _inputs, options: computed.append(options["input_ids"].numel()),
        with_kwargs=True,
    )
    figures = [stepped(learner, BATCH) for learner in learners]
    assert_same(weights_of(learners[0]), weights_of(learners[1]))
    prompts = [row.prompt_length - 1 for row in BATCH.rows]
    repeated = sum(prompts) - sum(prompts[::GROUP_SIZE])
    counted = sum(row.length for row in BATCH.rows)
    assert figures[0]["perf/shared_prompts"] == pytest.approx(repeated / counted)
    assert computed == [counted - repeated], "the model gets as many tokens"
    assert figures[0]["perf/padding_share"] == 0.0
    whole = stepped(learner_of(plan_of(model, shared=False)), BATCH)
    assert whole["perf/shared_prompts"] == 0.0
    for name in ("actor/loss", "actor/grad_norm"):
        assert figures[0][name] == pytest.approx(whole[name], rel=1e-4)


@pytest.mark.parametrize(
    "asked", [{"attention_dropout": 0.3}, {"model_config": {"attention_dropout": 0.3}}]
)
def test_rows_have_each_their_own_dropout_where_it_is_asked_for(
    learner_of: Build, model: Path, asked: dict[str, object]
) -> None:
    plans = [plan_of(model, shared=shared, override_config=asked) for shared in (True, False)]
    first, second = (gradients_of(learner_of(plan), BATCH) for plan in plans)
    assert_same(first, second)


def test_half_precision_is_as_close_with_shared_prompts_as_without(
    learner_of: Build, model: Path
) -> None:
    rows = [replace(BATCH.rows[0], position=number) for number in range(64)]
    batch = replace(BATCH, rows=rows)

    def gradients(dtype: str, *, shared: bool) -> Arrays:
        plan = plan_of(model, {"algorithm_type": "sft"}, shared=shared, dtype=dtype)
        return gradients_of(learner_of(plan), batch)

    exact = gradients("float32", shared=False)
    whole, cut = (far_apart(exact, gradients("bfloat16", shared=on)) for on in (False, True))
    assert cut < 1.1 * whole


def far_apart(left: Arrays, right: Arrays) -> float:
    """The length of the difference, over that of the gradient."""
    squares = sum(float(np.square(left[name] - right[name]).sum()) for name in left)
    return math.sqrt(squares / sum(float(np.square(array).sum()) for array in left.values()))
