"""What must hold for every loss, whatever the batch."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithm.policy_loss.batches import (
    AGES,
    MODES,
    Age,
    outcome,
    random_inputs,
    totals_of,
)
from tests.unit.algorithm.policy_loss.cutting import outcome_in_parts, random_cut
from tests.unit.algorithm.policy_loss.variants import IN_PAIRS, POLICY_GRADIENTS, VARIANTS
from tests.unit.subtests import as_subtests
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss import PAIR_LOSSES
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs

SEEDS = st.integers(0, 2**32 - 1)
ROUNDING = 1e-13
few = settings(max_examples=12)
every_loss = pytest.mark.parametrize("name", sorted(VARIANTS))


@every_loss
@few
@given(
    seed=SEEDS,
    age=st.sampled_from(AGES),
    mode=st.sampled_from(MODES),
    num_rows=st.sampled_from([2, 6, 10]),
    num_parts=st.integers(1, 5),
    weighted=st.booleans(),
)
def test_micro_batches_ranks_padding_and_order_change_nothing(
    name: str,
    seed: int,
    age: Age,
    mode: LossAggMode,
    num_rows: int,
    num_parts: int,
    weighted: bool,
) -> None:
    inputs = random_inputs(seed, age, num_rows=num_rows, num_tokens=7, with_experts=True)
    draw = np.random.default_rng(seed)
    factors_B = torch.from_numpy(draw.random(num_rows)) if weighted else None
    factors_B1 = None if factors_B is None else factors_B[:, None]
    parts = random_cut(num_rows, num_parts, draw, in_pairs=name in IN_PAIRS)
    whole = outcome(VARIANTS[name], inputs, mode, factors_BT=factors_B1)
    cut = outcome_in_parts(VARIANTS[name], inputs, parts, mode, draw, factors_B)
    scale = ROUNDING * (1 + float(whole.gradient_BT.abs().sum()) + abs(float(whole.loss)))
    torch.testing.assert_close(cut.loss, whole.loss, rtol=ROUNDING, atol=scale)
    torch.testing.assert_close(cut.gradient_BT, whole.gradient_BT, rtol=ROUNDING, atol=scale)
    assert cut.figures == pytest.approx(dict(whole.figures), rel=1e-9, abs=1e-9)


@every_loss
@few
@given(seed=SEEDS, age=st.sampled_from(AGES), mode=st.sampled_from(MODES))
def test_masked_tokens_have_no_gradient_and_no_say(
    name: str, seed: int, age: Age, mode: LossAggMode
) -> None:
    inputs = random_inputs(seed, age, with_experts=True)
    with_rubbish = filled_where_masked(inputs, np.random.default_rng(seed))
    clean, dirty = (outcome(VARIANTS[name], one, mode) for one in (inputs, with_rubbish))
    assert not dirty.gradient_BT[~inputs.mask_BT].any()
    assert torch.equal(clean.gradient_BT, dirty.gradient_BT)
    assert torch.equal(clean.loss, dirty.loss)
    assert clean.figures == dirty.figures


def filled_where_masked(inputs: PolicyInputs, draw: np.random.Generator) -> PolicyInputs:
    def filled(values_BT: torch.Tensor | None) -> torch.Tensor:
        assert values_BT is not None
        rubbish = torch.from_numpy(-30 * draw.random(tuple(values_BT.shape)))
        return torch.where(inputs.mask_BT, values_BT, rubbish)

    return replace(
        inputs,
        logprobs_BT=filled(inputs.logprobs_BT),
        old_logprobs_BT=filled(inputs.old_logprobs_BT),
        advantages_BT=filled(inputs.advantages_BT),
        reference_logprobs_BT=filled(inputs.reference_logprobs_BT),
    )


@pytest.mark.parametrize("name", POLICY_GRADIENTS)
@few
@given(seed=SEEDS, age=st.sampled_from(AGES), mode=st.sampled_from(MODES))
def test_without_advantages_there_is_exactly_no_policy_gradient(
    name: str, seed: int, age: Age, mode: LossAggMode
) -> None:
    inputs = random_inputs(seed, age)
    inputs = replace(inputs, advantages_BT=torch.zeros_like(inputs.advantages_BT))
    found = outcome(VARIANTS[name], inputs, mode)
    assert found.loss == 0
    assert not found.gradient_BT.any()


@every_loss
@few
@given(
    seed=SEEDS,
    dtype=st.sampled_from([torch.float32, torch.float64]),
    mode=st.sampled_from(MODES),
    farthest=st.sampled_from([21.0, 90.0, 800.0]),
)
def test_numbers_stay_finite_however_far_the_old_policy_is(
    name: str, seed: int, dtype: torch.dtype, mode: LossAggMode, farthest: float
) -> None:
    draw = np.random.default_rng(seed)
    inputs = random_inputs(seed, dtype=dtype, with_experts=True)

    def anywhere() -> torch.Tensor:
        values_BT = np.where(draw.random((8, 12)) < 0.5, -1e-6, -farthest * draw.random((8, 12)))
        return torch.from_numpy(values_BT).to(dtype) * inputs.mask_BT

    inputs = replace(
        inputs,
        logprobs_BT=anywhere(),
        old_logprobs_BT=anywhere(),
        reference_logprobs_BT=anywhere(),
        advantages_BT=5 * inputs.advantages_BT,
    )
    found = outcome(VARIANTS[name], inputs, mode)
    assert torch.isfinite(found.loss)
    assert torch.isfinite(found.gradient_BT).all()
    assert all(np.isfinite(value) for value in found.figures.values())


@as_subtests("name", sorted(VARIANTS))
def test_a_batch_without_tokens_is_worth_nothing(name: str) -> None:
    inputs = random_inputs(1, with_experts=True)
    empty = replace(inputs, mask_BT=torch.zeros_like(inputs.mask_BT))
    found = outcome(VARIANTS[name], empty)
    assert found.loss == 0
    assert not found.gradient_BT.any()
    assert not any(found.figures.values())


@as_subtests("name", sorted(VARIANTS))
def test_no_loss_leaves_the_device_or_waits_for_it(name: str) -> None:
    """Tensors of the meta device hold no numbers: asking for one, or mixing devices, fails."""
    inputs = random_inputs(1, with_experts=True)
    on_device = {
        field.name: values.to("meta")
        for field in fields(inputs)
        if isinstance(values := getattr(inputs, field.name), torch.Tensor)
    }
    there = replace(inputs, **on_device)
    totals = totals_of(inputs)
    there.logprobs_BT.requires_grad_()
    loss = VARIANTS[name](there)
    loss_contribution(loss, there, totals, "seq-mean-token-mean", there.mask_BT * 0.5).backward()
    assert all(value.is_meta for value in metric_contributions(loss, there, totals).values())


@pytest.mark.parametrize("name", sorted(IN_PAIRS))
@few
@given(seed=SEEDS)
def test_a_pairs_gradient_is_its_own(name: str, seed: int) -> None:
    """What the other pairs hold changes only the number of pairs that is divided by."""
    inputs = random_inputs(seed, num_rows=4)
    other: dict[str, Any] = {
        "logprobs_BT": inputs.logprobs_BT.clone(),
        "reference_logprobs_BT": inputs.logprobs_BT.clone(),
    }
    other["logprobs_BT"][2:] -= 5.0
    gradients = [
        outcome(VARIANTS[name], one).gradient_BT[:2]
        for one in (
            replace(inputs, reference_logprobs_BT=other["reference_logprobs_BT"]),
            replace(inputs, **other),
        )
    ]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", sorted(PAIR_LOSSES))
@few
@given(seed=SEEDS)
def test_a_loss_of_pairs_raises_the_chosen_row_and_lowers_the_rejected_one(
    name: str, seed: int
) -> None:
    inputs = random_inputs(seed, num_rows=4)
    gradient_BT = outcome(VARIANTS[name], inputs).gradient_BT
    assert (gradient_BT[::2][inputs.mask_BT[::2]] < 0).all()
    assert (gradient_BT[1::2][inputs.mask_BT[1::2]] > 0).all()
