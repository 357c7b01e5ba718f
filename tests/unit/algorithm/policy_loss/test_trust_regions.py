"""DCPO and M2PO against slow loops over tokens, and what sets them apart from PPO."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.unit.algorithm.policy_loss import reference
from tests.unit.algorithm.policy_loss.batches import AGES, MODES, Age, random_inputs
from tests.unit.algorithm.policy_loss.test_against_formula import assert_is
from tests.unit.algorithm.policy_loss.test_examples import gradient, one_token
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.dcpo import dcpo
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.m2po import m2po
from trinity.algorithm.policy_loss.ppo import ppo


def dcpo_bounds(old: float, low: float, high: float, largest: float) -> tuple[float, float]:
    """The ends of the range of ratios by bisection: where |r - 1| p reaches the bound."""
    probability = math.exp(old)

    def change(ratio: float) -> float:
        return abs(ratio - 1) * ratio * probability

    top, bottom = largest, 1.0
    for _ in range(200):
        middle = (bottom + top) / 2
        bottom, top = (middle, top) if change(middle) < high else (bottom, middle)
    below, above = 0.5, 1.0
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (below, middle) if change(middle) < low else (middle, above)
    return above, top


def slow_dcpo(row: reference.Row, low: float, high: float, c: float) -> list[torch.Tensor]:
    losses = []
    for t in row:
        at_least, at_most = dcpo_bounds(max(t.old, -20.0), low, high, c)
        value = reference.ppo_objective(t.ratio, t.advantage, 1 - at_least, at_most - 1, c)
        losses.append(-value)
    return losses


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("mode", MODES)
def test_dcpo_clips_where_the_change_of_probability_reaches_its_bounds(
    mode: LossAggMode, age: Age
) -> None:
    inputs = random_inputs(4, age)

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        losses = [slow_dcpo(row, 0.1, 0.3, 8.0) for row in rows]
        return reference.aggregate(losses, mode, inputs.mask_BT.shape[1])

    ours = partial(dcpo, clip_range_low=0.1, clip_range_high=0.3, clip_ratio_c=8.0)
    assert_is(ours, slow, inputs, mode)


def at(old_probability: float, ratio: float, advantage: float) -> PolicyInputs:
    token = one_token(math.log(old_probability * ratio), advantage)
    old_BT = torch.full((1, 1), math.log(old_probability), dtype=torch.float64)
    return replace(token, old_logprobs_BT=old_BT)


def test_a_rare_token_may_rise_further_than_a_likely_one() -> None:
    assert gradient(dcpo, at(0.01, 3.0, 1.0)) != 0
    assert gradient(dcpo, at(0.3, 3.0, 1.0)) == 0
    assert gradient(ppo, at(0.01, 3.0, 1.0)) == 0


@pytest.mark.parametrize("largest", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("mode", MODES)
def test_m2po_is_ppo_within_the_range_of_the_batch_but_never_less_than_its_own(
    mode: LossAggMode, age: Age, largest: float
) -> None:
    inputs = random_inputs(6, age)
    inputs = replace(inputs, chosen_BT=torch.full_like(inputs.logprobs_BT, largest))
    lowest = 1 - max(1 - math.exp(-largest), 0.3)
    highest = 1 + max(math.exp(largest) - 1, 0.5)

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        def of_token(token: reference.Token) -> torch.Tensor:
            is_out = token.ratio > highest if token.advantage > 0 else token.ratio < lowest
            bound = highest if token.advantage > 0 else lowest
            return -token.advantage * (bound if is_out else token.ratio)

        losses = [[of_token(token) for token in row] for row in rows]
        return reference.aggregate(losses, mode, inputs.mask_BT.shape[1])

    assert_is(m2po, slow, inputs, mode)


def test_a_token_that_comes_back_to_the_old_policy_is_never_clipped_by_m2po() -> None:
    for ratio, advantage in ((0.1, 1.0), (8.0, -1.0)):
        inputs = replace(at(0.05, ratio, advantage), chosen_BT=torch.zeros(1, 1))
        assert gradient(m2po, inputs) != 0
    beyond = replace(at(0.05, 1.6, 1.0), chosen_BT=torch.zeros(1, 1))
    assert gradient(m2po, beyond) == 0
    assert gradient(m2po, replace(beyond, chosen_BT=torch.ones(1, 1))) != 0
