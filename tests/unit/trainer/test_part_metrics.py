"""Metrics that users' parts of every kind return are logged."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from services.buffer.domain.batches import MeasuredRow, batch_metrics, pipeline_metrics
from services.buffer.domain.group import SampleGroup, ScoredSample
from services.buffer.domain.operators import GroupArrays
from services.trainer.estimation import EstimationFunctions
from services.trainer.learner.advantages import RolloutRows, estimate_advantages
from services.trainer.learner.loss import BatchLoss, LossFunctions
from services.trainer.learner.prepared_batch import PreparedBatch
from services.trainer.types import mean_over_passes
from tests.unit.subtests import as_subtests
from tests.unit.trainer.builders import random_batch
from trinity.algorithm.advantage.samples import Advantages
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.policy_loss.inputs import PolicyLoss
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages
from trinity.operators.rollouts import Changes
from trinity.rewards.reward import BoundReward
from trinity.rft.algorithm.entropy_loss_fn import EntropyLossFn
from trinity.rft.algorithm.entropy_loss_fn.adapting import adapted_entropy_loss
from trinity.rft.algorithm.policy_loss_fn import PolicyLossFn
from trinity.rft.algorithm.policy_loss_fn.adapting import adapted_loss

VALUE = 0.375
MASK = np.array([[True, True, False], [True, True, True]])


class OwnLoss(PolicyLossFn):
    def __call__(self, logprob: Any, action_mask: Any) -> Any:  # type: ignore[override]
        return (logprob * action_mask).sum(), {"own": VALUE}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}


class OwnEntropy(EntropyLossFn):
    def __call__(self, entropy: Any, action_mask: Any, **_: Any) -> Any:
        return (entropy * action_mask).sum(), {"own": VALUE}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}


def _sums(policy: Any = None, entropy: Any = None) -> dict[str, float]:
    """What a step of two micro-batches logs."""
    functions = LossFunctions(
        policy_loss=policy or (lambda rows: PolicyLoss(name="pg_loss", loss_BT=rows.logprobs_BT)),
        kl=None,
        entropy_loss=entropy,
        agg_mode="token-mean",
    )
    totals = BatchTotals.from_counts(MASK.sum(-1), max_response_tokens=3)
    loss = BatchLoss(functions, totals, step=1, kl_coef=0.0, num_ranks=1)
    for row in range(2):
        zeros = torch.zeros(1, 3)
        data = TensorDict(
            {
                "loss_mask": torch.tensor(MASK[row : row + 1]),
                "old_logprobs": zeros,
                "advantages": zeros + 1.0,
                "row_weights": torch.ones(1),
            },
            batch_size=[1],
        )
        loss({"log_probs": zeros.clone().requires_grad_(), "entropy": zeros + 0.5}, data, None)
    return {name: float(value) for name, value in loss.sums._sums.items()}


def _function_of_entropy(inputs: Any) -> PolicyLoss:
    filled = torch.full_like(inputs.entropy_BT, VALUE)
    return PolicyLoss(name="own_entropy", loss_BT=inputs.entropy_BT, metrics={"own": filled})


def _token_advantage() -> Mapping[str, float]:
    def own(batch: Any) -> TokenAdvantages:
        return TokenAdvantages(advantages_BT=batch.rewards_BT, metrics={"own": VALUE})

    functions = EstimationFunctions(bypass=True, correction=None, penalty="none", advantage=own)
    prepared = replace(
        PreparedBatch.from_batch(random_batch(4, seed=4)), policy={}, reference_logprobs_BT=None
    )
    return estimate_advantages(functions, RolloutRows.from_prepared(prepared, None), 0.0).metrics


def _arrays() -> GroupArrays:
    samples = [
        ScoredSample(experience_id=str(run), run=run, reward=1.0, finish_reason="stop")
        for run in range(2)
    ]
    return GroupArrays.from_groups(
        [SampleGroup(explore_step=1, position=0, samples=samples)], {}, seed=1
    )


def _group_advantage() -> Mapping[str, float]:
    [outcome] = _arrays().outcomes(Advantages(np.zeros(2), metrics={"own": np.array([VALUE])}))
    return pipeline_metrics([outcome.metrics])


def _operator() -> Mapping[str, float]:
    changed = _arrays().with_changes("mine", Changes(metrics={"own": np.array([VALUE])}))
    [outcome] = changed.outcomes(Advantages(np.zeros(2)))
    return pipeline_metrics([outcome.metrics])


def _rollout(metrics: Mapping[str, float], of_run: Mapping[str, float]) -> Mapping[str, float]:
    row = MeasuredRow(
        explore_step=1,
        position=0,
        run=0,
        reward=1.0,
        response_length=3,
        version_min=0,
        metrics=dict(metrics),
        run_metrics=dict(of_run),
    )
    return batch_metrics([row], step=1)


def _reward() -> Mapping[str, float]:
    def mine(response: str) -> Mapping[str, float]:
        return {"score": float(len(response)), "own": VALUE}

    return _rollout(BoundReward(mine, {}, "mine")(response="a"), {})


KINDS: Mapping[str, tuple[Callable[[], Mapping[str, float]], str]] = {
    "policy loss": (lambda: _sums(policy=adapted_loss("own", OwnLoss)), "own"),
    "entropy loss, a class": (lambda: _sums(entropy=adapted_entropy_loss("o", OwnEntropy)), "own"),
    "entropy loss, a function": (lambda: _sums(entropy=_function_of_entropy), "own"),
    "token advantage": (_token_advantage, "advantage/own"),
    "group advantage": (_group_advantage, "experience_pipeline/own/mean"),
    "operator": (_operator, "experience_pipeline/own/mean"),
    "reward": (_reward, "rollout/own/mean"),
    "sample of a workflow": (lambda: _rollout({"own": VALUE}, {}), "rollout/own/mean"),
    "run of a workflow": (lambda: _rollout({}, {"own": VALUE}), "rollout/own/mean"),
}


@as_subtests("kind", KINDS)
def test_a_metric_of_a_users_part_is_logged(kind: str) -> None:
    compute, name = KINDS[kind]
    assert compute()[name] == pytest.approx(VALUE)


def test_metrics_of_two_parts_with_one_name_are_not_added_up() -> None:
    sums = _sums(policy=adapted_loss("own", OwnLoss), entropy=adapted_entropy_loss("o", OwnEntropy))
    assert sums["own"] == pytest.approx(VALUE)
    assert sums["entropy_term/own"] == pytest.approx(VALUE)

    def own(inputs: Any) -> PolicyLoss:
        term = _function_of_entropy(inputs)
        return replace(term, metrics={"entropy": term.metrics["own"]})

    sums = _sums(entropy=own)
    assert sums["entropy"] == pytest.approx(0.5)
    assert sums["own_entropy/entropy"] == pytest.approx(VALUE)


def test_a_metric_that_some_updates_lack_is_the_mean_of_the_others() -> None:
    updates = [{"loss": 1.0}, {"loss": 2.0, "own": VALUE}, {"loss": 3.0, "own": -VALUE}]
    assert mean_over_passes(updates) == {"loss": 2.0, "own": 0.0}
    assert mean_over_passes(updates[::-1]) == {"loss": 2.0, "own": 0.0}
