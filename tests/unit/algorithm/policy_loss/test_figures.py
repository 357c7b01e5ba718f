"""Borders of losses, and what they report beside the number that is trained on."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import outcome, totals_of
from tests.unit.subtests import as_subtests
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.policy_loss.cispo import cispo
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.dcpo import dcpo
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss, Share
from trinity.algorithm.policy_loss.rec import ClipMode, rec
from trinity.algorithm.policy_loss.sapo import sapo
from trinity.algorithm.policy_loss.topr import topr
from trinity.errors import UserError

HALF = math.log(0.5)
"""Of a ratio that is exactly one half."""


def inputs_of(advantages: list[float], ratios: list[float]) -> PolicyInputs:
    """One row; the old policy's log-probabilities are 0 where the ratio is a power of two."""
    logprobs_BT = torch.tensor([[math.log(ratio) for ratio in ratios]], dtype=torch.float64)
    return PolicyInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=torch.zeros_like(logprobs_BT),
        advantages_BT=torch.tensor([advantages], dtype=torch.float64),
        mask_BT=torch.ones(logprobs_BT.shape, dtype=torch.bool),
    )


@pytest.mark.parametrize(("share", "part"), [("tokens", 3 / 10), ("rows", 2 / 5)])
def test_a_loss_of_one_number_counts_by_the_part_of_the_batch_that_its_rows_are(
    share: Share, part: float
) -> None:
    inputs = replace(
        inputs_of([1.0] * 3, [1.0] * 3), mask_BT=torch.tensor([[True, True, False]] * 3)
    )
    mask_BT = inputs.mask_BT.clone()
    mask_BT[1, 1] = mask_BT[2] = False
    rows = replace(inputs, mask_BT=mask_BT)
    totals = BatchTotals(num_tokens=10, num_sequences=5, max_response_tokens=9)
    loss = PolicyLoss(name="loss", loss=torch.tensor(4.0), share=share)
    assert loss_contribution(loss, rows, totals, "token-mean").item() == pytest.approx(4 * part)


def test_a_figure_of_rows_is_their_mean_however_many_tokens_each_has() -> None:
    mask_BT = torch.tensor([[True, False], [True, True], [False, False]])
    inputs = replace(inputs_of([1.0], [1.0]), mask_BT=mask_BT)
    loss = PolicyLoss(
        name="loss",
        loss_BT=torch.zeros(mask_BT.shape),
        metrics={"figure": torch.tensor([1.0, 5.0, 9.0])},
    )
    assert metric_contributions(loss, inputs, totals_of(inputs))["figure"].item() == 3.0


def test_of_rollouts_alone_no_token_is_an_experts() -> None:
    totals = BatchTotals.from_counts(np.array([3, 0, 5]), max_response_tokens=9)
    assert (totals.num_tokens, totals.num_expert_tokens, totals.num_expert_sequences) == (8, 0, 0)


def test_dcpo_takes_any_bound_above_one() -> None:
    inputs = inputs_of([-1.0], [4.0])
    assert outcome(lambda given: dcpo(given, clip_ratio_c=1.5), inputs).loss.item() == 1.5
    with pytest.raises(UserError, match="give more than 1"):
        dcpo(inputs, clip_ratio_c=1.0)


def test_topr_tapers_an_advantage_that_is_its_threshold() -> None:
    inputs = inputs_of([0.5, 0.5 + 1e-9], [0.5, 0.5])
    found = outcome(lambda given: topr(given, advantage_threshold=0.5), inputs)
    assert found.figures["avg_alpha"] == 0.75


def test_cispo_leaves_out_bad_tokens_below_its_border_and_no_others() -> None:
    inputs = inputs_of([-1.0, -1.0, 0.0, 1.0], [0.25, 0.5, 0.25, 0.25])
    found = outcome(
        lambda given: cispo(given, enable_mask_clip=True, mask_clip_range_low=0.5), inputs
    )
    assert inputs.logprobs_BT[0, 1].exp().item() == 0.5
    assert found.figures["unmasked_frac"] == 0.75


def test_rec_tells_the_share_that_is_out_of_its_range() -> None:
    inputs = inputs_of([1.0, 1.0, -1.0, -1.0], [2.0, 1.0, 0.5, 1.0])
    clipped = outcome(lambda given: rec(given, clip_mode="two-side"), inputs)
    assert clipped.figures["pg_clipfrac"] == 0.5
    assert outcome(rec, inputs).figures["pg_clipfrac"] == 0.0


@as_subtests("clip_mode", ["one-side", "two-side", "ring", "gspo-one-side"])
@as_subtests(("advantage", "ratio"), [(1.0, 2.0), (-1.0, 0.5)])
def test_a_ratio_that_is_recs_bound_still_counts(
    clip_mode: ClipMode, advantage: float, ratio: float
) -> None:
    bounded = partial(rec, clip_mode=clip_mode, epsilon_low=0.5, epsilon_high=1.0)
    found = outcome(bounded, inputs_of([advantage], [ratio]))
    assert found.figures["pg_clipfrac"] == 0.0
    assert found.loss.item() == -math.log(2)


@as_subtests(
    ("clip_mode", "share"),
    [("one-side", 0.0), ("gspo-one-side", 0.0), ("ring", 0.0), ("two-side", 1.0)],
)
@as_subtests("ratio", [4.0, 0.25])
def test_neither_bound_holds_for_an_advantage_of_zero_where_rec_has_one_side(
    clip_mode: ClipMode, share: float, ratio: float
) -> None:
    found = outcome(partial(rec, clip_mode=clip_mode), inputs_of([0.0], [ratio]))
    assert found.figures["pg_clipfrac"] == share


def test_sapo_tells_the_share_of_tokens_with_a_positive_advantage() -> None:
    found = outcome(sapo, inputs_of([1.0, -1.0, 0.0, -2.0], [1.0] * 4))
    assert found.figures["pos_adv_frac"] == 0.25
