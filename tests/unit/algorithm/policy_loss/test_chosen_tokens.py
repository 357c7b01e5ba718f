"""Clip-Cov and KL-Cov are verl's where a micro-batch is the whole batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import (
    MODES,
    Age,
    Outcome,
    outcome,
    random_inputs,
)
from tests.unit.algorithm.policy_loss.verl_losses import VerlLoss
from tests.unit.algorithm.token_selection.batches import choice_of
from tests.unit.subtests import as_subtests
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.errors import UserError

EXACT, SINGLE, MEAN_OF_ROW = 1e-9, 1e-5, 2e-8
CLIP = {"clip_range_low": 0.1, "clip_range_high": 0.3}
COV = {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.05, "clip_cov_ub": 5.0}
KL = {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}
OURS: dict[str, dict[str, float]] = {"clip_cov": {**CLIP, **COV}, "kl_cov": KL}
VERLS = {
    "clip_cov": VerlLoss("clip_cov", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3}, COV),
    "kl_cov": VerlLoss("kl_cov", policy_loss=KL),
}
CASES = [(name, mode, age) for name in OURS for mode in MODES for age in ("fresh", "stale")]


def both(name: str, mode: LossAggMode, inputs: PolicyInputs, seed: int) -> tuple[Outcome, Outcome]:
    """Ours, and verl's with our lots in place of its own chance."""
    lots_BT = np.random.default_rng(seed).random(tuple(inputs.mask_BT.shape))
    chosen_BT = choice_of(name, inputs, lots_BT, **OURS[name])
    assert 0 < chosen_BT.sum() < inputs.mask_BT.sum()
    ours = outcome(
        lambda one: POLICY_LOSSES.get(name)(one, **OURS[name]),
        replace(inputs, chosen_BT=torch.from_numpy(chosen_BT)),
        mode,
    )
    with drawing_from(lots_BT, inputs):
        return ours, VERLS[name](inputs, mode)


@contextmanager
def drawing_from(lots_BT: np.ndarray, inputs: PolicyInputs) -> Iterator[None]:
    """verl's candidates in the order of our lots."""
    covariances_BT = np.full(lots_BT.shape, -np.inf)
    mask_BT = inputs.mask_BT.numpy()
    advantages, logprobs = (
        values.double().numpy()[mask_BT] for values in (inputs.advantages_BT, inputs.logprobs_BT)
    )
    covariances_BT[mask_BT] = (advantages - advantages.mean()) * (logprobs - logprobs.mean())
    ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).double().exp().numpy()
    advantages_BT = inputs.advantages_BT.double().numpy()
    is_clipped_BT = ((ratio_BT > 1.3) & (advantages_BT > 0)) | (
        (ratio_BT < 0.9) & (advantages_BT < 0)
    )
    candidates_BT = (covariances_BT > 0.05) & (covariances_BT < 5.0) & ~is_clipped_BT
    order = torch.from_numpy(np.argsort(lots_BT[candidates_BT]))

    def permutation(number: int) -> torch.Tensor:
        assert number == len(order)
        return order

    with mock.patch.object(torch, "randperm", permutation):
        yield


def assert_same(ours: Outcome, theirs: Outcome, tolerance: float) -> None:
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=tolerance, atol=tolerance)
    scale = tolerance * max(float(theirs.gradient_BT.abs().max()), 1e-3)
    torch.testing.assert_close(ours.gradient_BT, theirs.gradient_BT, rtol=tolerance, atol=scale)


@as_subtests("seed", range(3))
@as_subtests(("name", "mode", "age"), CASES)
def test_loss_gradient_and_figures_are_verls(
    name: str, mode: LossAggMode, age: Age, seed: int
) -> None:
    inputs = random_inputs(seed, age, num_rows=16, num_tokens=24)
    ours, theirs = both(name, mode, inputs, seed)
    assert_same(ours, theirs, MEAN_OF_ROW if mode == "seq-mean-token-mean" else EXACT)
    for figure, value in theirs.figures.items():
        assert ours.figures[figure] == pytest.approx(value, rel=1e-6, abs=1e-9), figure


@as_subtests(("name", "mode", "age"), CASES)
def test_so_they_are_in_single_precision(name: str, mode: LossAggMode, age: Age) -> None:
    inputs = random_inputs(7, age, num_rows=16, num_tokens=24, dtype=torch.float32)
    assert_same(*both(name, mode, inputs, 7), SINGLE)


def test_a_chosen_token_has_no_gradient_under_clip_cov_and_another_one_under_kl_cov() -> None:
    inputs = random_inputs(3)
    assert inputs.chosen_BT is not None
    nothing = replace(inputs, chosen_BT=torch.zeros_like(inputs.chosen_BT))
    for name in OURS:
        chosen, usual = (
            outcome(POLICY_LOSSES.get(name), one).gradient_BT for one in (inputs, nothing)
        )
        assert torch.equal(chosen[~inputs.chosen_BT], usual[~inputs.chosen_BT])
        if name == "clip_cov":
            assert not chosen[inputs.chosen_BT].any()
        else:
            assert (chosen != usual)[inputs.chosen_BT].all()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("clip_cov", {"clip_cov_ratio": 0.0}),
        ("clip_cov", {"clip_cov_ratio": 1.5}),
        ("clip_cov", {"clip_cov_lb": 5.0}),
        ("kl_cov", {"kl_cov_ratio": -0.1}),
    ],
)
def test_what_cannot_be_is_named(name: str, wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"`{next(iter(wrong))}` of the policy loss {name} is"):
        POLICY_LOSSES.get(name)(random_inputs(1), **wrong)
