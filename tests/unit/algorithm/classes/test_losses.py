"""Losses, divergences and entropies that are classes of Trinity-RFT."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.algorithm.classes import plugin
from trinity.algorithm.aggregation import BatchTotals
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.kl import DIVERGENCES
from trinity.algorithm.kl.estimators import KL_ESTIMATORS
from trinity.algorithm.kl.penalty import kl_penalty
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs, validate_policy_loss
from trinity.errors import UserError
from trinity.plugins import Registry
from trinity.rft.algorithm.entropy_loss_fn import EntropyLossFn
from trinity.rft.algorithm.kl_fn import KLFn
from trinity.rft.algorithm.policy_loss_fn import PolicyLossFn
from trinity.rft.algorithm.utils import aggregate_loss
from trinity.user_code.adapted_part import AdaptedPart

ADVANTAGES = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]])
MASK = torch.tensor([[True, True, True], [True, False, False]])


def batch() -> PolicyInputs:
    """Two rows of three tokens and of one; the log-ratios are 0.1, 0.2, 2.0 and 0.4."""
    logprobs = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, 0.0, 0.0]], requires_grad=True)
    old = torch.tensor([[-1.1, -1.2, -3.0], [-1.4, 0.0, 0.0]])
    return PolicyInputs(
        logprobs_BT=logprobs, old_logprobs_BT=old, advantages_BT=ADVANTAGES, mask_BT=MASK
    )


def rows(inputs: PolicyInputs, *numbers: int) -> PolicyInputs:
    chosen = list(numbers)
    return replace(
        inputs,
        logprobs_BT=inputs.logprobs_BT[chosen],
        old_logprobs_BT=inputs.old_logprobs_BT[chosen],
        advantages_BT=inputs.advantages_BT[chosen],
        mask_BT=inputs.mask_BT[chosen],
    )


def totals(inputs: PolicyInputs) -> BatchTotals:
    return BatchTotals.from_counts(inputs.mask_BT.sum(-1).numpy(), max_response_tokens=3)


def total_loss(
    name: str, parts: list[PolicyInputs], whole: PolicyInputs, **arguments: Any
) -> float:
    function = POLICY_LOSSES.get(name)
    shares = [
        loss_contribution(function(part, **arguments), part, totals(whole), "token-mean")
        for part in parts
    ]
    return float(sum(share.item() for share in shares))


BY_HAND = [
    ({}, (-np.exp(0.1) - np.exp(0.2) - np.exp(0.5) + 2 * np.exp(0.4)) / 4),
    ({"bound": 3.0}, (-np.exp(0.1) - np.exp(0.2) - np.exp(2.0) + 2 * np.exp(0.4)) / 4),
    (
        {"loss_agg_mode": "seq-mean-token-mean"},
        (-(np.exp(0.1) + np.exp(0.2) + np.exp(0.5)) / 3 + 2 * np.exp(0.4)) / 2,
    ),
    (
        {"loss_agg_mode": "seq-mean-token-sum"},
        (-(np.exp(0.1) + np.exp(0.2) + np.exp(0.5)) + 2 * np.exp(0.4)) / 2,
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), BY_HAND)
def test_a_loss_is_what_its_formula_says_and_parts_add_up(
    arguments: dict[str, Any], expected: float
) -> None:
    whole = batch()
    one_call = total_loss("classes_clipped", [whole], whole, **arguments)
    parts = [rows(whole, 0), rows(whole, 1)]
    assert one_call == pytest.approx(expected, rel=1e-6)
    assert total_loss("classes_clipped", parts, whole, **arguments) == pytest.approx(one_call)


def test_a_loss_that_does_not_say_how_it_averages_is_watched() -> None:
    whole = batch()
    parts = [rows(whole, 0), rows(whole, 1)]
    path = f"{plugin.__name__}.Unsaid"
    assert total_loss(path, parts, whole) == pytest.approx(BY_HAND[0][1], rel=1e-6)
    sft = total_loss("classes_attribute", _with_reference(parts), _with_reference([whole])[0])
    assert sft == pytest.approx(-4.0), "the one before averages over rows"


def _with_reference(parts: list[PolicyInputs]) -> list[PolicyInputs]:
    return [
        replace(part, reference_logprobs_BT=torch.full_like(part.old_logprobs_BT, -3.0))
        for part in parts
    ]


def test_a_plain_mean_of_parts_would_differ_for_tokens() -> None:
    whole = batch()
    means = [
        total_loss("classes_clipped", [part], part) for part in (rows(whole, 0), rows(whole, 1))
    ]
    assert np.mean(means) != pytest.approx(BY_HAND[0][1], rel=1e-3)


def test_its_gradient_reaches_the_policy_and_masked_rows_add_nothing() -> None:
    inputs = batch()
    loss = POLICY_LOSSES.get("classes_clipped")(inputs)
    loss_contribution(loss, inputs, totals(inputs), "token-mean").backward()
    assert inputs.logprobs_BT.grad is not None
    assert inputs.logprobs_BT.grad[0, 0].item() == pytest.approx(-np.exp(0.1) / 4, rel=1e-6)
    assert inputs.logprobs_BT.grad[0, 2] == 0, "the bound holds"
    assert inputs.logprobs_BT.grad[1, 1] == 0, "the token is masked"
    empty = replace(batch(), mask_BT=torch.zeros_like(MASK))
    assert total_loss("classes_clipped", [empty], batch()) == 0


def test_its_metrics_are_numbers_and_never_the_trainers_own() -> None:
    inputs = batch()
    loss = POLICY_LOSSES.get("classes_clipped")(inputs)
    found = metric_contributions(loss, inputs, totals(inputs))
    assert found.keys() == {"policy_loss/loss", "ratio"}
    ratio = (np.exp(0.1) + np.exp(0.2) + np.exp(0.5) + np.exp(0.4)) / 4
    assert found["ratio"].item() == pytest.approx(ratio, rel=1e-6)


def test_an_argument_that_only_default_args_name_is_an_attribute() -> None:
    inputs = replace(batch(), reference_logprobs_BT=torch.full((2, 3), -3.0))
    adapted: Any = POLICY_LOSSES.get("classes_attribute")
    assert adapted.needs_reference
    assert not POLICY_LOSSES.get("classes_clipped").needs_reference  # type: ignore[attr-defined]
    loss = adapted(inputs)
    assert loss.share == "rows"
    assert loss.loss.item() == pytest.approx(2.0 * -2.0)
    assert adapted(inputs, tau=1.0).loss.item() == pytest.approx(-2.0)


def test_a_loss_is_tried_before_a_stage_starts() -> None:
    validate_policy_loss("classes_clipped", POLICY_LOSSES.get("classes_clipped"), {})

    class Silent(plugin.Clipped):
        """Returns no loss that depends on the policy."""

        def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
            """Returns 1."""
            return torch.tensor(1.0), {}

    function: Any = registry().get_adapted("silent", Silent)
    with pytest.raises(UserError, match="does not depend on `logprobs_BT`"):
        validate_policy_loss("silent", function, {})


class _Adapting(Registry[Any]):
    """A registry whose adapter can be called for a class alone."""

    def get_adapted(self, name: str, source: type) -> Any:
        self.register(name, source)
        return self.get(name)


def registry(adapter: str = "trinity.algorithm.policy_loss_fn.adapt_policy_loss") -> _Adapting:
    return _Adapting("part", {"taken": "os.sep"}, adapter=adapter)


def test_a_tensor_that_the_trainer_does_not_have_is_named() -> None:
    class Wanting(plugin.Clipped):
        """Wants something else."""

        def __call__(  # type: ignore[override]
            self, logprob: torch.Tensor, entropy_of_teacher: torch.Tensor, **kwargs: Any
        ) -> tuple[torch.Tensor, dict[str, Any]]:
            """Is not called."""
            raise AssertionError

    with pytest.raises(UserError, match="wants the tensors entropy_of_teacher, which the trainer"):
        registry().get_adapted("wanting", Wanting)


def test_what_a_class_leaves_out_or_refuses_is_said() -> None:
    class Half(PolicyLossFn):
        """Has no `__call__`."""

        @classmethod
        def default_args(cls) -> dict[str, Any]:
            """Returns nothing."""
            return {}

    with pytest.raises(UserError, match="Half leaves __call__ abstract: define it"):
        registry().get_adapted("half", Half)
    with pytest.raises(UserError, match=r"Clipped refuses its arguments: .*could not convert"):
        registry().get_adapted("clipped", _Strict)(batch(), bound="wide")


class _Strict(plugin.Clipped):
    """Checks its argument."""

    def __init__(self, bound: Any = 1.0) -> None:
        super().__init__(bound=float(bound))


_Strict.__name__ = "Clipped"


def test_a_class_may_take_the_name_of_a_built_in_part_and_a_function_may_not() -> None:
    parts = registry()
    parts.register("taken", plugin.Clipped)
    assert isinstance(parts.get("taken"), AdaptedPart)
    assert parts.plan_name("taken") == f"{plugin.__name__}.Clipped"
    assert "taken" not in parts.builtins
    assert parts.built_in("taken") == "/"
    with pytest.raises(UserError, match="registered already"):
        registry().register("taken", len)


def test_a_part_that_cannot_be_used_does_not_keep_its_file_from_loading() -> None:
    class Bare(PolicyLossFn):
        """Has no `__call__`."""

        @classmethod
        def default_args(cls) -> dict[str, Any]:
            """Returns nothing."""
            return {}

    parts = registry()
    parts.register("bare", Bare)
    assert parts.is_own("bare") and "bare" in parts.names()
    for ask in (parts.get, parts.check_name):
        with pytest.raises(UserError, match="Bare leaves __call__ abstract"):
            ask("bare")


def test_an_estimator_is_called_by_the_loss_and_by_the_penalty() -> None:
    policy, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-2.0, -5.0]])
    halved: Any = DIVERGENCES.get("classes_halved")
    assert halved(policy, reference).tolist() == [[0.25, 2.25]]
    penalty = kl_penalty(
        np.zeros((1, 2)),
        estimator="classes_halved",
        coef=0.5,
        logprobs_BT=policy.double().numpy(),
        reference_logprobs_BT=reference.double().numpy(),
        mask_BT=np.array([[True, True]]),
    )
    assert penalty.rewards_BT.tolist() == [[-0.125, -1.125]]


def test_the_same_estimators_are_known_here_and_there() -> None:
    assert list(DIVERGENCES.builtins) == list(KL_ESTIMATORS)
    for name, function in KL_ESTIMATORS.items():
        assert DIVERGENCES.get(name) is function


def test_an_estimator_that_replaces_what_the_trainer_does_is_refused() -> None:
    class Loud(plugin.Halved):
        """Has a loss of its own."""

        def calculate_kl_loss(self, *args: Any, **kwargs: Any) -> Any:
            """Is not called."""

    with pytest.raises(UserError, match="Loud defines `calculate_kl_loss`, which is not called"):
        registry("trinity.algorithm.kl_fn.adapt_kl").get_adapted("loud", Loud)


def test_an_estimator_whose_own_arguments_must_be_given_is_refused() -> None:
    class Scaled(plugin.Halved):
        """Has an argument that no file can give."""

        def __init__(self, scale: float, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.scale = scale

    with pytest.raises(UserError, match=r"Scaled refuses its arguments: .*scale"):
        registry("trinity.algorithm.kl_fn.adapt_kl").get_adapted("scaled", Scaled)


def test_an_entropy_loss_is_averaged_over_the_whole_batch() -> None:
    entropy = torch.tensor([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0]])
    function: Any = ENTROPY_LOSSES.get("classes_entropy")
    shares = [
        loss_contribution(
            function(EntropyInputs(entropy_BT=entropy[[i]], mask_BT=MASK[[i]])),
            rows(batch(), i),
            totals(batch()),
            "token-mean",
        ).item()
        for i in range(2)
    ]
    assert sum(shares) == pytest.approx((1 + 2 + 3 + 10) / 4 / 10)


class ByMode(EntropyLossFn):
    """Aggregates as the algorithm says."""

    def __call__(
        self, entropy: torch.Tensor, action_mask: torch.Tensor, loss_agg_mode: str = "", **_: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Returns the term."""
        return aggregate_loss(entropy, action_mask, loss_agg_mode), {}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns nothing."""
        return {}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("token-mean", (1 + 2 + 3 + 10) / 4), ("seq-mean-token-mean", (2 + 10) / 2)],
)
def test_an_entropy_loss_gets_the_mode_of_the_algorithm(mode: Any, expected: float) -> None:
    entropy = torch.tensor([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0]])
    function = registry("trinity.algorithm.entropy_loss_fn.adapt_entropy_loss").get_adapted(
        "by_mode", ByMode
    )
    shares = [
        loss_contribution(
            function(EntropyInputs(entropy_BT=entropy[[i]], mask_BT=MASK[[i]], agg_mode=mode)),
            rows(batch(), i),
            totals(batch()),
            mode,
        ).item()
        for i in range(2)
    ]
    assert sum(shares) == pytest.approx(expected)


BY_HAND_CLIPPED = (-np.exp(0.1) - 1.2 - 1.2 + 2 * np.exp(0.4)) / 4
BUILT_IN = [
    ("PPOPolicyLossFn", {}, BY_HAND_CLIPPED),
    ("PPOPolicyLossFn", {"clip_range_high": 9.0}, BY_HAND[1][1]),
    ("SFTLossFn", {}, 1.0),
    ("OPMDPolicyLossFn", {"tau": 1.0}, (1 + 1 + 1 - 2) / 4 / 2),
]


@pytest.mark.parametrize(("name", "arguments", "expected"), BUILT_IN)
def test_a_loss_of_trinity_rft_can_be_called_with_its_tensors(
    name: str, arguments: dict[str, Any], expected: float
) -> None:
    from trinity.algorithm import policy_loss_fn

    source = getattr(policy_loss_fn, name)
    inputs = batch()
    loss, metrics = source(**{**source.default_args(), **arguments})(
        logprob=inputs.logprobs_BT,
        old_log_probs=inputs.old_logprobs_BT,
        response_mask=MASK,
        advantages=ADVANTAGES,
    )
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert metrics


def test_a_loss_may_be_made_of_trinity_rfts_own_for_rows_of_two_kinds() -> None:
    mixed = replace(batch(), is_expert_B=torch.tensor([False, True]))
    usual, expert = (-np.exp(0.1) - 1.2 - 1.2) / 3, 1.0
    expected = 0.75 * usual + 0.25 * expert
    assert total_loss("classes_mixed", [mixed], mixed) == pytest.approx(expected, abs=1e-6)
    plain = batch()
    alone = BY_HAND_CLIPPED * 0.75
    assert total_loss("classes_mixed", [plain], plain) == pytest.approx(alone, abs=1e-6)


def test_bases_are_what_users_derive_from() -> None:
    assert issubclass(plugin.Clipped, PolicyLossFn)
    assert plugin.Clipped().select_keys == ["old_log_probs", "response_mask", "advantages"]
    assert issubclass(plugin.Halved, KLFn)
