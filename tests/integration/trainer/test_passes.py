"""Several passes over a batch are as many steps of the optimizer, as verl takes them."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from services.trainer.learner.prepared_batch import PreparedBatch
from tests.integration.trainer.learners import (
    RATE,
    Build,
    assert_close,
    assert_same,
    critic_weights_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from tensordict import TensorDict

    from services.trainer.learner.learner import Learner

BATCH = random_batch(16, seed=5)
NUM_PASSES = 3


def plan_of(
    model: Path, kind: str, passes: int, critic_passes: int = 1, /, **algorithm: object
) -> StagePlan:
    trainer = {"ppo_epochs": passes, "critic": {"ppo_epochs": critic_passes}}
    return make_plan(model, {"algorithm_type": kind, "repeat_times": 8, **algorithm}, trainer)


def test_passes_of_the_policy_are_steps_on_the_same_batch_bit_for_bit(
    learner_of: Build, model: Path
) -> None:
    """Old log-probabilities are the rollouts', so that nothing else changes between the steps."""
    passing = learner_of(plan_of(model, "grpo", NUM_PASSES, kl_loss_fn="none"))
    stepping = learner_of(plan_of(model, "grpo", 1, kl_loss_fn="none"))
    found = stepped(passing, BATCH)
    figures = [stepped(stepping, BATCH) for _ in range(NUM_PASSES)]
    assert_same(weights_of(passing), weights_of(stepping))
    for name in ("actor/loss", "actor/grad_norm", "actor/ppo_kl", "actor/entropy"):
        assert found[name] == pytest.approx(np.mean([one[name] for one in figures]), rel=1e-12)
    assert 0 < found["time/forward_backward"] <= found["time/update_actor"]
    ratio = "off_policy/ratio/p90"
    assert found[ratio] == figures[0][ratio], "rows are described by the policy before the step"


def test_ratios_of_all_passes_are_to_the_policy_before_the_first(
    learner_of: Build, model: Path
) -> None:
    once, twice = (
        stepped(learner_of(plan_of(model, "grpo", passes, bypass_old_logprobs=False)), BATCH)
        for passes in (1, 2)
    )
    assert once["actor/ppo_kl"] == 0
    assert twice["actor/ppo_kl"] != 0


def test_the_critic_passes_over_its_batch_as_often_as_it_is_told_itself(
    learner_of: Build, model: Path
) -> None:
    """Its targets stay those of before the first pass."""
    learner = learner_of(plan_of(model, "ppo", 1, NUM_PASSES))
    by_hand = learner_of(plan_of(model, "ppo", 1))
    prepared = by_hand._preparation.prepare_batch(BATCH, kl_coef=0.0)
    critic = by_hand._roles.critic
    assert critic is not None and prepared.critic is not None
    losses = [critic.update(prepared, RATE)["critic/vf_loss"] for _ in range(NUM_PASSES)]
    found = stepped(learner, BATCH)
    assert_same(critic_weights_of(learner), critic_weights_of(by_hand))
    assert found["critic/vf_loss"] == pytest.approx(np.mean(losses), rel=1e-12)
    one_pass = learner_of(plan_of(model, "ppo", 1))
    stepped(one_pass, BATCH)
    assert_same(weights_of(one_pass), weights_of(learner))


def verls_passes(learner: "Learner", model_batch: PreparedBatch) -> None:
    """The same batch through verl's own loop over epochs and mini-batches."""
    import torch
    from verl.utils import tensordict_utils

    from services.trainer.learner.actor import _matrices
    from services.trainer.learner.loss import BatchLoss
    from services.trainer.learner.verl_calls import EngineOutputs, MicroBatchBuilder

    actor = learner._roles.actor
    loss = BatchLoss(
        actor._functions,
        model_batch.totals(model_batch.mask_BT, 16),
        step=1,
        kl_coef=0.0,
        num_ranks=1,
    )

    num_rows = len(model_batch.rows)
    maker = MicroBatchBuilder(model_batch.rows, model_batch.layout, packed=True)
    data = maker.build(tuple(range(num_rows)), _matrices(model_batch), EngineOutputs())
    rows = [torch.from_numpy(row.tokens.astype(np.int64)) for row in model_batch.rows]
    places = [torch.arange(len(row)) for row in rows]
    data["input_ids"] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data["position_ids"] = torch.nested.as_nested_tensor(places, layout=torch.jagged)
    tensordict_utils.assign_non_tensor(
        data,
        mini_batch_size=num_rows,
        epochs=NUM_PASSES,
        seed=1,
        dataloader_kwargs={"shuffle": True},
    )

    def of_columns(
        model_output: dict[str, torch.Tensor], data: "TensorDict", dp_group: object
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of ours, from what verl gives for every token of every row."""
        first = tensordict_utils.get_non_tensor_data(data, "first_token", default=1)
        end = first - 1 + data["loss_mask"].shape[1]
        columns = model_output["log_probs"].to_padded_tensor(0.0)[:, first - 1 : end]
        return loss({"log_probs": columns}, data, dp_group)

    actor.worker.set_loss_fn(of_columns)
    actor.worker.train_mini_batch(data)


def use_verls_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are built with verl's own engine, and with an attention that needs no hint."""
    from verl.utils.device import get_device_name, get_vendor
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    engines = EngineRegistry._engines["language_model"]["fsdp2"]
    key = (get_device_name(), get_vendor())
    monkeypatch.setitem(engines, key, FSDPEngineWithLMHead)
    monkeypatch.setattr("services.trainer.backend.verl_worker.PACKED_ATTENTION", "sdpa")


def test_passes_are_verls_ppo_epochs_with_the_batch_as_one_mini_batch(
    learner_of: Build, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl's shuffling changes nothing but the order of sums."""
    rate = 0.1
    sgd = {"kl_loss_fn": "none", "optimizer": {"lr": rate, "optimizer_type": "sgd"}}
    ours = learner_of(plan_of(model, "grpo", NUM_PASSES, **sgd))
    before = weights_of(ours)
    stepped(ours, BATCH, rate)
    use_verls_engine(monkeypatch)
    theirs = learner_of(plan_of(model, "grpo", 1, **sgd))
    verls_passes(theirs, theirs._preparation.prepare_batch(BATCH, kl_coef=0.0))
    moved = {name: weights_of(ours)[name] - before[name] for name in before}
    expected = {name: weights_of(theirs)[name] - before[name] for name in before}
    assert max(float(np.abs(one).max()) for one in moved.values()) > 1e-3
    assert_close(moved, expected)
