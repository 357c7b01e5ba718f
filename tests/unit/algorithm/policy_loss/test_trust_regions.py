"""DCPO and M2PO against slow loops over tokens, and what sets them apart from PPO."""

import math
from dataclasses import replace
from functools import partial

import torch

from tests.support.oracle import losses as reference
from tests.unit.algorithm.policy_loss.batches import AGES, MODES, Age, random_inputs
from tests.unit.algorithm.policy_loss.test_against_formula import assert_is
from tests.unit.algorithm.policy_loss.test_examples import gradient, one_token
from tests.unit.subtests import as_subtests
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.dcpo import dcpo
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.m2po import m2po
from trinity.algorithm.policy_loss.ppo import ppo


@as_subtests("age", AGES)
@as_subtests("mode", MODES)
def test_dcpo_clips_where_the_change_of_probability_reaches_its_bounds(
    mode: LossAggMode, age: Age
) -> None:
    inputs = random_inputs(4, age)

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        losses = [reference.dcpo(row, 0.1, 0.3, 8.0) for row in rows]
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


@as_subtests("largest", [0.0, 0.6, 2.0])
@as_subtests("age", AGES)
@as_subtests("mode", MODES)
def test_m2po_is_ppo_within_the_range_of_the_batch_but_never_less_than_its_own(
    mode: LossAggMode, age: Age, largest: float
) -> None:
    inputs = random_inputs(6, age)
    inputs = replace(inputs, chosen_BT=torch.full_like(inputs.logprobs_BT, largest))

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        losses = [reference.m2po(row, largest) for row in rows]
        return reference.aggregate(losses, mode, inputs.mask_BT.shape[1])

    assert_is(m2po, slow, inputs, mode)


def test_a_token_that_comes_back_to_the_old_policy_is_never_clipped_by_m2po() -> None:
    for ratio, advantage in ((0.1, 1.0), (8.0, -1.0)):
        inputs = replace(at(0.05, ratio, advantage), chosen_BT=torch.zeros(1, 1))
        assert gradient(m2po, inputs) != 0
    beyond = replace(at(0.05, 1.6, 1.0), chosen_BT=torch.zeros(1, 1))
    assert gradient(m2po, beyond) == 0
    assert gradient(m2po, replace(beyond, chosen_BT=torch.ones(1, 1))) != 0
