"""DCPO and M2PO against slow loops over tokens, and what sets them apart from PPO."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.unit.algorithm.policy_loss import reference
from tests.unit.algorithm.policy_loss.batches import AGES, MODES, Age, outcome, random_inputs
from tests.unit.algorithm.policy_loss.test_against_formula import assert_is
from tests.unit.algorithm.policy_loss.test_examples import gradient, one_token
from tests.unit.algorithm.token_selection.batches import choice_of
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


@pytest.mark.parametrize("age", AGES)
@pytest.mark.parametrize("mode", MODES)
def test_m2po_is_the_plain_ratio_without_its_outliers(mode: LossAggMode, age: Age) -> None:
    inputs = random_inputs(6, age)
    lots_BT = np.random.default_rng(0).random(tuple(inputs.mask_BT.shape))
    selected_BT = torch.from_numpy(choice_of("m2po", inputs, lots_BT, m2_threshold=0.04))
    if age == "stale":
        assert 0 < selected_BT.sum() < inputs.mask_BT.sum()
    inputs = replace(inputs, chosen_BT=selected_BT)
    is_kept = [
        [not selected_BT[b, t] for t in range(inputs.mask_BT.shape[1]) if inputs.mask_BT[b, t]]
        for b in range(inputs.mask_BT.shape[0])
    ]

    def slow(rows: list[reference.Row]) -> torch.Tensor:
        losses = [
            [-t.advantage * t.ratio * kept for t, kept in zip(row, keeps, strict=True)]
            for row, keeps in zip(rows, is_kept, strict=True)
        ]
        return reference.aggregate(losses, mode, inputs.mask_BT.shape[1])

    assert_is(m2po, slow, inputs, mode)


def test_m2pos_kept_tokens_have_a_small_second_moment() -> None:
    inputs = random_inputs(3)
    lots_BT = np.random.default_rng(0).random(tuple(inputs.mask_BT.shape))
    chosen_BT = torch.from_numpy(choice_of("m2po", inputs, lots_BT, m2_threshold=0.04))
    kept_BT = inputs.mask_BT & ~chosen_BT
    moment = (inputs.logprobs_BT - inputs.old_logprobs_BT)[kept_BT].square().mean()
    assert float(moment) < 0.04
    figures = outcome(m2po, replace(inputs, chosen_BT=chosen_BT)).figures
    assert figures["m2"] > 0.04
