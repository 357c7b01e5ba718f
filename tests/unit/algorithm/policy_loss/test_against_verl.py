"""Our losses against verl's: values and gradients on random batches, old policies near and far.

Where they differ on purpose:

- A mean over a row's tokens, and so `seq-mean-token-mean`, divides by the number of tokens; verl
  adds 1e-8 to it, which is a relative difference of up to 1e-8 (`MEAN_OF_ROW`).
- gspo has the gradient of the whole sequence's ratio; with one advantage a row that is verl's
  gspo, with advantages (or importance weights) of tokens verl's gspo is our gspo_token.
- sapo is aggregated as the user says; verl always takes `seq-mean-token-mean`.
- geo_mean counts rows that have tokens and bounds the row's ratio at e^20; verl's mean counts all.
- `seq-mean-token-sum-norm` divides by the longest response there could be; verl, where nothing
  else is set, by the width of the micro-batch at hand.
- dppo_tv and dppo_kl truncate ratios at 20 by default, as verl recommends; its actor's setting
  is 3. dro's beta is 1 by default; verl has no default.
- clip_cov and kl_cov choose their tokens once for the whole batch, verl in each micro-batch: see
  test_chosen_tokens. Ratios are bounded at e^20.
"""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import (
    AGES,
    MODES,
    Age,
    Loss,
    Outcome,
    outcome,
    random_inputs,
)
from tests.unit.algorithm.policy_loss.verl_losses import VerlLoss
from tests.unit.subtests import as_subtests
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.cispo import cispo
from trinity.algorithm.policy_loss.dppo_kl import dppo_kl
from trinity.algorithm.policy_loss.dppo_tv import dppo_tv
from trinity.algorithm.policy_loss.dro import dro
from trinity.algorithm.policy_loss.geo_mean import geo_mean
from trinity.algorithm.policy_loss.gpg import gpg
from trinity.algorithm.policy_loss.gspo import gspo
from trinity.algorithm.policy_loss.gspo_token import gspo_token
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.ppo import ppo
from trinity.algorithm.policy_loss.ratio import row_means
from trinity.algorithm.policy_loss.sapo import sapo

EXACT, SINGLE, MEAN_OF_ROW = 1e-9, 1e-5, 2e-8


@dataclass(frozen=True, slots=True)
class Pair:
    """A loss of ours and the one of verl that it should be."""

    ours: Loss
    verls: VerlLoss
    modes: tuple[LossAggMode, ...] = MODES
    ages: tuple[Age, ...] = AGES
    per_row: bool = False
    """Compared with one advantage a row, and tokens in every row."""


WIDE = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3}
NARROW = {"clip_ratio_low": 0.003, "clip_ratio_high": 0.004}
PAIRS = {
    "ppo": Pair(
        partial(ppo, clip_range_low=0.1, clip_range_high=0.3, clip_ratio_c=2.5),
        VerlLoss("vanilla", {**WIDE, "clip_ratio_c": 2.5}),
    ),
    "gspo": Pair(
        partial(gspo, clip_range_low=0.003, clip_range_high=0.004),
        VerlLoss("gspo", NARROW),
        per_row=True,
    ),
    "gspo_token": Pair(
        partial(gspo_token, clip_range_low=0.003, clip_range_high=0.004), VerlLoss("gspo", NARROW)
    ),
    "sapo": Pair(sapo, VerlLoss("sapo"), modes=("seq-mean-token-mean",)),
    "cispo": Pair(partial(cispo, clip_range_low=0.1, clip_range_high=0.3), VerlLoss("cispo", WIDE)),
    "gpg": Pair(gpg, VerlLoss("gpg")),
    "geo_mean": Pair(
        partial(geo_mean, clip_range_low=0.1, clip_range_high=0.3),
        VerlLoss("geo_mean", WIDE),
        modes=("seq-mean-token-mean",),
        ages=("fresh", "stale"),
        per_row=True,
    ),
    "dro": Pair(partial(dro, dro_beta=0.7), VerlLoss("dro", policy_loss={"dro_beta": 0.7})),
    "dppo_tv": Pair(
        partial(dppo_tv, clip_range_low=0.1, clip_range_high=0.3, clip_ratio_c=5.0),
        VerlLoss("dppo_tv", {**WIDE, "clip_ratio_c": 5.0}),
    ),
    "dppo_kl": Pair(
        partial(dppo_kl, clip_range_low=0.01, clip_range_high=0.03, clip_ratio_c=5.0),
        VerlLoss("dppo_kl", {"clip_ratio_low": 0.01, "clip_ratio_high": 0.03, "clip_ratio_c": 5.0}),
    ),
}
CASES = [
    (name, mode, age) for name, pair in PAIRS.items() for mode in pair.modes for age in pair.ages
]


def batch_for(pair: Pair, age: Age, seed: int, dtype: torch.dtype) -> PolicyInputs:
    inputs = random_inputs(seed, age, num_rows=16, num_tokens=24, dtype=dtype)
    if not pair.per_row:
        return inputs
    mask_BT = inputs.mask_BT.clone()
    mask_BT[:, 0] = True
    advantages_BT = row_means(inputs.advantages_BT, mask_BT) * mask_BT
    return replace(inputs, mask_BT=mask_BT, advantages_BT=advantages_BT)


def assert_same(ours: Outcome, theirs: Outcome, tolerance: float) -> None:
    """Relative to the largest of the batch: sums of large numbers cancel."""
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=tolerance, atol=tolerance)
    scale = tolerance * max(float(theirs.gradient_BT.abs().max()), 1e-3)
    torch.testing.assert_close(ours.gradient_BT, theirs.gradient_BT, rtol=tolerance, atol=scale)


@pytest.mark.parametrize("seed", range(3))
@as_subtests(("name", "mode", "age"), CASES)
def test_loss_and_gradient_are_verls(name: str, mode: LossAggMode, age: Age, seed: int) -> None:
    pair = PAIRS[name]
    inputs = batch_for(pair, age, seed, torch.float64)
    ours, theirs = outcome(pair.ours, inputs, mode), pair.verls(inputs, mode)
    assert_same(ours, theirs, MEAN_OF_ROW if mode == "seq-mean-token-mean" else EXACT)


@as_subtests(("name", "mode", "age"), CASES)
def test_so_they_are_in_single_precision(name: str, mode: LossAggMode, age: Age) -> None:
    pair = PAIRS[name]
    inputs = batch_for(pair, age, 7, torch.float32)
    assert_same(outcome(pair.ours, inputs, mode), pair.verls(inputs, mode), SINGLE)


@as_subtests("name", PAIRS)
def test_importance_weights_multiply_the_losses_as_in_verl(name: str) -> None:
    pair = PAIRS[name]
    inputs = batch_for(pair, "stale", 5, torch.float64)
    generator = torch.Generator().manual_seed(5)
    num_rows, num_tokens = inputs.mask_BT.shape
    num_factors = 1 if name == "gspo" else num_tokens
    factors_BT = 0.3 + torch.rand(num_rows, num_factors, generator=generator, dtype=torch.float64)
    factors_BT = factors_BT.expand(num_rows, num_tokens)
    mode = pair.modes[0]
    ours = outcome(pair.ours, inputs, mode, factors_BT=factors_BT)
    exact = EXACT if mode == "token-mean" else MEAN_OF_ROW
    assert_same(ours, pair.verls(inputs, mode, factors_BT), exact)


@as_subtests("age", ["fresh", "stale"])
@as_subtests("name", PAIRS)
def test_figures_are_verls_where_it_has_them(name: str, age: Age) -> None:
    pair = PAIRS[name]
    inputs = batch_for(pair, age, 11, torch.float64)
    ours, theirs = (
        outcome(pair.ours, inputs, pair.modes[0]).figures,
        pair.verls(inputs, pair.modes[0]).figures,
    )
    shared = ours.keys() & theirs.keys()
    assert shared or name == "gpg"  # which has none
    for figure in shared:
        assert ours[figure] == pytest.approx(theirs[figure], rel=1e-6, abs=1e-9), figure


def test_advantages_of_tokens_part_gspo_from_its_token_variant() -> None:
    inputs = random_inputs(2)
    whole, by_token = outcome(gspo, inputs), outcome(gspo_token, inputs)
    assert not torch.allclose(whole.gradient_BT, by_token.gradient_BT)
