"""The critic is a role of the gang: its values, its step, its warm-up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from services.trainer.backend.packed_attention import RUNS_ARGUMENT
from services.trainer.learner.prepared_batch import PreparedBatch
from tests.integration.trainer.learners import (
    RATE,
    Build,
    assert_close,
    assert_same,
    critic_weights_of,
    gradients_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

BATCH = random_batch(16, seed=5)


def ppo_plan(model: Path, max_tokens: int = 8192, warmup: int = 0, **critic: object) -> StagePlan:
    trainer = {"max_token_len_per_gpu": max_tokens, "critic_warmup": warmup, "critic": critic}
    return make_plan(model, {"algorithm_type": "ppo"}, trainer)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("max_tokens", [190, 80])
def test_one_step_of_actor_and_critic_is_the_same_in_one_call_or_in_several(
    learner_of: Build, model: Path, mode: str, max_tokens: int
) -> None:
    whole = gradients_of(learner_of(ppo_plan(model, loss_agg_mode=mode)), BATCH)
    parts = gradients_of(learner_of(ppo_plan(model, max_tokens, loss_agg_mode=mode)), BATCH)
    assert any(name.startswith("critic/") for name in whole)
    assert_close(whole, parts)


def test_a_value_is_of_what_stands_before_its_token(learner_of: Build, model: Path) -> None:
    critic = learner_of(ppo_plan(model, max_tokens=80))._roles.critic
    assert critic is not None
    values_BT = critic.values(PreparedBatch.from_batch(BATCH))
    for number, row in enumerate(BATCH.rows):
        with torch.no_grad():
            tokens = torch.from_numpy(row.tokens.astype(np.int64))[None]
            alone = {RUNS_ARGUMENT: ((row.length, 1),)}
            all_values = critic._worker.engine.module(input_ids=tokens, **alone).logits[0, :, 0]
        expected = all_values[row.prompt_length - 1 : -1].numpy()
        np.testing.assert_allclose(
            values_BT[number, : row.response_length], expected, rtol=1e-4, atol=1e-5
        )


def test_every_life_begins_with_the_same_critic(learner_of: Build, model: Path) -> None:
    first, second = (critic_weights_of(learner_of(ppo_plan(model))) for _ in range(2))
    assert_same(first, second)
    assert np.abs(first["score.weight"]).max() > 0


def test_the_body_of_the_critic_is_the_actors_model(learner_of: Build, model: Path) -> None:
    learner = learner_of(ppo_plan(model))
    actor, critic = weights_of(learner), critic_weights_of(learner)
    shared = actor.keys() & critic.keys()
    assert len(shared) == len(actor)
    assert_same({name: actor[name] for name in shared}, {name: critic[name] for name in shared})


def test_the_critic_moves_and_the_actor_waits_while_it_warms_up(
    learner_of: Build, model: Path
) -> None:
    learner = learner_of(ppo_plan(model, warmup=2))
    actor, critic = weights_of(learner), critic_weights_of(learner)
    for step in (1, 2):
        metrics = stepped(learner, random_batch(16, seed=step, step=step))
        assert "actor/loss" not in metrics
        assert metrics["critic/grad_norm"] > 0
    assert_same(weights_of(learner), actor)
    moved = critic_weights_of(learner)
    assert not np.array_equal(moved["score.weight"], critic["score.weight"])
    metrics = stepped(learner, random_batch(16, seed=3, step=3))
    assert metrics["actor/grad_norm"] > 0
    assert any(not np.array_equal(weights_of(learner)[name], actor[name]) for name in actor)


def test_the_critic_learns_what_rollouts_return(learner_of: Build, model: Path) -> None:
    learner = learner_of(ppo_plan(model, warmup=100, cliprange_value=100.0))
    losses = [stepped(learner, BATCH, 3e-3)["critic/vf_loss"] for _ in range(25)]
    assert losses[-1] < 0.1 * losses[0]


def test_clipping_holds_the_critic_back(learner_of: Build, model: Path) -> None:
    """The loss is of the values before the step, so the first step is not clipped yet."""
    learner = learner_of(ppo_plan(model))
    assert stepped(learner, BATCH)["critic/vf_clipfrac"] == 0.0


def test_the_critics_rate_is_its_own(learner_of: Build, model: Path) -> None:
    learner = learner_of(ppo_plan(model))
    actor, critic = weights_of(learner), critic_weights_of(learner)
    metrics = learner.train_step(BATCH, 0.0, RATE).metrics
    assert (metrics["actor/lr"], metrics["critic/lr"]) == (0.0, RATE)
    assert_same(weights_of(learner), actor)
    assert not np.array_equal(critic_weights_of(learner)["score.weight"], critic["score.weight"])


def test_a_reward_without_tokens_to_train_on_moves_nothing(learner_of: Build, model: Path) -> None:
    silent = [replace(row, mask=np.zeros_like(row.mask)) for row in random_batch(4, seed=9).rows]
    rows = [replace(row, run_reward=None) for row in silent]
    left, right = learner_of(ppo_plan(model)), learner_of(ppo_plan(model))
    stepped(left, replace(BATCH, rows=[*BATCH.rows, *rows]))
    stepped(right, BATCH)
    assert_same(weights_of(left), weights_of(right))
    assert_same(critic_weights_of(left), critic_weights_of(right))


def test_an_advantage_without_returns_cannot_teach_a_critic(learner_of: Build, model: Path) -> None:
    plan = ppo_plan(model)
    algorithm = plan.algorithm.model_copy(update={"advantage_fn": "rloo", "advantage_fn_args": {}})
    learner = learner_of(plan.model_copy(update={"algorithm": algorithm}))
    with pytest.raises(UserError, match="returns"):
        stepped(learner, BATCH)
