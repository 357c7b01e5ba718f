"""What a stage says at its start of a policy loss that could not train."""

from collections.abc import Callable

import pytest
import torch

from tests.unit.subtests import as_subtests
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss, validate_policy_loss
from trinity.errors import UserError


def of_one_number(inputs: PolicyInputs) -> PolicyLoss:
    return PolicyLoss(name="loss", loss_BT=inputs.logprobs_BT.mean())


def of_nothing(inputs: PolicyInputs) -> PolicyLoss:
    del inputs
    return PolicyLoss(name="loss")


def of_constants(inputs: PolicyInputs) -> PolicyLoss:
    return PolicyLoss(name="loss", loss_BT=inputs.advantages_BT)


def as_a_tensor(inputs: PolicyInputs) -> torch.Tensor:
    return inputs.logprobs_BT


def with_a_number(inputs: PolicyInputs) -> PolicyLoss:
    figures = {"mean": 1.0}
    return PolicyLoss(name="loss", loss_BT=inputs.logprobs_BT, metrics=figures)


def with_a_slip(inputs: PolicyInputs) -> PolicyLoss:
    return PolicyLoss(name="loss", loss_BT=inputs.logprobs_BT[:, :1] @ inputs.old_logprobs_BT)


@as_subtests("name", sorted(POLICY_LOSSES.builtins))
def test_every_loss_of_ours_passes(name: str) -> None:
    validate_policy_loss(name, POLICY_LOSSES.get(name), {})


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (of_one_number, "shape"),
        (of_nothing, "neither"),
        (of_constants, "does not depend"),
        (as_a_tensor, "gives Tensor"),
        (with_a_number, "'mean'"),
        (with_a_slip, "RuntimeError"),
    ],
)
def test_a_loss_that_could_not_train_is_refused(loss: Callable[..., PolicyLoss], said: str) -> None:
    with pytest.raises(UserError, match=said):
        validate_policy_loss("mine", loss, {})


def test_an_argument_that_makes_no_sense_is_named_before_the_first_step() -> None:
    with pytest.raises(UserError, match="clip_ratio_c"):
        validate_policy_loss("ppo", POLICY_LOSSES.get("ppo"), {"clip_ratio_c": 0.5})


def test_an_argument_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match="clip_rang"):
        validate_policy_loss("ppo", POLICY_LOSSES.get("ppo"), {"clip_rang": 0.5})
