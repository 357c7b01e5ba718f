"""Estimators of the divergence: by hand, against verl, against their own meaning."""

import math

import pytest
import torch

from tests.support.oracle.losses import divergence
from tests.unit.algorithm.policy_loss.batches import AGES, Age, random_inputs
from tests.unit.algorithm.policy_loss.verl_losses import core_algos
from tests.unit.subtests import as_subtests
from trinity.algorithm.kl.estimators import KL_ESTIMATORS, KlEstimator
from trinity.algorithm.kl.penalty import ESTIMATORS
from trinity.verl.rules.algorithm import KL_NAMES

SAME_AS_VERL = {
    "k1": "k1",
    "k2": "k2",
    "low_var_kl": "low_var_kl",
    "abs": "abs",
    "k1+": "k1+",
}
"""Our name and verl's. verl's k3 is bounded and so our low_var_kl; k3 is not (see below)."""


def values_and_gradient(
    estimator: KlEstimator, inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_BT = inputs[0].clone().requires_grad_()
    values_BT = estimator(logprobs_BT, *inputs[1:])
    if not values_BT.requires_grad:
        return values_BT, torch.zeros_like(logprobs_BT)
    (gradient_BT,) = torch.autograd.grad(values_BT.sum(), logprobs_BT)
    return values_BT.detach(), gradient_BT


def policies(age: Age, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = random_inputs(3, age, num_rows=20, num_tokens=30, dtype=dtype)
    return inputs.logprobs_BT, inputs.old_logprobs_BT


def assert_same(
    ours: tuple[torch.Tensor, torch.Tensor],
    theirs: tuple[torch.Tensor, torch.Tensor],
    tolerance: float,
) -> None:
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@as_subtests("age", AGES)
@as_subtests(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@as_subtests("name", SAME_AS_VERL)
def test_values_and_gradients_are_verls(
    name: str, dtype: torch.dtype, tolerance: float, age: Age
) -> None:
    pair = policies(age, dtype)
    theirs = values_and_gradient(
        lambda p, q, _=None: core_algos().kl_penalty(p, q, SAME_AS_VERL[name]), pair
    )
    assert_same(values_and_gradient(KL_ESTIMATORS[name], pair), theirs, tolerance)


def test_k3_is_verls_below_its_bound() -> None:
    """verl cuts k3 at 10, which leaves no gradient where the policy is far below the reference."""
    pair = policies("stale", torch.float64)
    theirs = values_and_gradient(lambda p, q, _=None: core_algos().kl_penalty(p, q, "k3"), pair)
    assert theirs[0].max() < 10
    assert_same(values_and_gradient(KL_ESTIMATORS["k3"], pair), theirs, 1e-9)


VERLS_NAMES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")


@as_subtests("verls", [*VERLS_NAMES, "kl+", "k1+", "mse+", "k2+", "low_var_kl+", "k3+"])
def test_what_the_converter_writes_for_verls_name_is_verls_however_far_the_reference_is(
    verls: str,
) -> None:
    """At a log-ratio of 5 a `k3` without bound is 142 with a gradient of -147; veRL's 10 and 0."""
    reference_BT = torch.linspace(-25, 25, 101, dtype=torch.float64).unsqueeze(0)
    pair = (torch.zeros_like(reference_BT), reference_BT)
    theirs = values_and_gradient(lambda p, q, _=None: core_algos().kl_penalty(p, q, verls), pair)
    assert_same(values_and_gradient(KL_ESTIMATORS[KL_NAMES.get(verls, verls)], pair), theirs, 1e-9)
    as_penalty = ESTIMATORS[KL_NAMES.get(verls, verls)]
    zeros_N, reference_N = (column_BT[0].numpy() for column_BT in pair)
    in_reward = torch.from_numpy(as_penalty(zeros_N, reference_N, zeros_N))
    torch.testing.assert_close(in_reward, theirs[0][0], rtol=1e-9, atol=1e-9)


@as_subtests(
    ("name", "expected"),
    [
        ("none", 0.0),
        ("k1", 0.5),
        ("k2", 0.125),
        ("k3", 0.1065306597),
        ("low_var_kl", 0.1065306597),
        ("abs", 0.5),
        ("corrected_k3", 0.1065306597 * math.exp(0.3)),
        ("k1+", 0.5),
        ("k3+", 0.1065306597),
    ],
)
def test_each_estimator_has_its_value(name: str, expected: float) -> None:
    policy, reference, old = (torch.tensor([[x]]) for x in (-1.0, -1.5, -1.3))
    assert KL_ESTIMATORS[name](policy, reference, old).item() == pytest.approx(expected, rel=1e-5)


@as_subtests("age", AGES)
@as_subtests("name", sorted(KL_ESTIMATORS.keys() - {"none"}))
def test_values_and_gradients_are_the_formulas(name: str, age: Age) -> None:
    policy_BT, old_BT = policies(age, torch.float64)
    reference_BT = policy_BT.roll(1, 0)
    found, gradient = values_and_gradient(KL_ESTIMATORS[name], (policy_BT, reference_BT, old_BT))
    for b, t in [(b, t) for b in range(8) for t in range(10)]:
        lp = policy_BT[b, t].clone().requires_grad_()
        expected = divergence(name, lp, reference_BT[b, t].item(), old_BT[b, t].item())
        slope = torch.autograd.grad(expected, lp)[0].item() if expected.requires_grad else 0.0
        assert found[b, t].item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
        assert gradient[b, t].item() == pytest.approx(slope, rel=1e-9, abs=1e-9)


@as_subtests("name", KL_ESTIMATORS)
def test_a_policy_does_not_diverge_from_itself(name: str) -> None:
    same = torch.tensor([[-0.7, -3.0]])
    values, gradient = values_and_gradient(KL_ESTIMATORS[name], (same, same, same))
    assert not values.any()
    assert name in ("k1", "abs") or not gradient.any()


@as_subtests("name", KL_ESTIMATORS)
@as_subtests("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_stay_finite_however_far_the_reference_is(
    name: str, dtype: torch.dtype
) -> None:
    far = torch.tensor([[0.0, -20.5, -100.0, -900.0]], dtype=dtype)
    for triple in ((far, far.flip(1), far.flip(1)), (far.flip(1), far, far)):
        for found in values_and_gradient(KL_ESTIMATORS[name], triple):
            assert torch.isfinite(found).all()


def test_low_var_kl_stays_bounded_where_k3_explodes() -> None:
    policy, reference = torch.tensor([[-15.0]]), torch.tensor([[0.0]])
    assert KL_ESTIMATORS["low_var_kl"](policy, reference).item() == 10.0
    assert KL_ESTIMATORS["k3"](policy, reference).item() > 1e6


def test_corrected_k3_without_the_old_policy_is_k3() -> None:
    policy_BT, reference_BT = policies("stale", torch.float64)
    k3_BT = KL_ESTIMATORS["k3"](policy_BT, reference_BT)
    assert torch.equal(KL_ESTIMATORS["corrected_k3"](policy_BT, reference_BT, None), k3_BT)


@pytest.mark.parametrize("name", ["k2", "corrected_k3", "k1+", "k3+"])
def test_the_mean_gradient_over_old_samples_is_the_divergences(name: str) -> None:
    """Summed over all outcomes of a small distribution; only corrected_k3 bears an old policy."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64)
    shift = 0.2 * torch.randn(2, 6, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    policy, reference = logits.log_softmax(0), (logits.detach() + shift[0]).log_softmax(0)
    old = (logits.detach() + shift[1]).log_softmax(0) if name == "corrected_k3" else policy.detach()
    estimate = (old.exp() * KL_ESTIMATORS[name](policy, reference, old)).sum()
    divergence = (policy.exp() * (policy - reference)).sum()
    found, expected = (
        torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (estimate, divergence)
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
