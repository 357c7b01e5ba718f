"""Tries a policy loss on a few tokens before a stage starts, so that errors show at once."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss, PolicyLossFn
from trinity.errors import UserError
from trinity.types import JsonValue

SHAPE = (2, 2)


def validate_policy_loss(
    name: str, policy_loss: PolicyLossFn, arguments: dict[str, JsonValue]
) -> None:
    """Calls it once with its arguments.

    Raises: UserError when it fails, or returns anything but losses of tokens or of rows.
    """
    inputs = _two_rows()
    try:
        loss = policy_loss(inputs, **arguments)
    except UserError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise UserError(
            f"the policy loss {name!r} with {arguments} fails on two rows of two tokens: "
            f"{type(error).__name__}: {error}"
        ) from error
    if fault := _error_in(loss):
        raise UserError(
            f"the policy loss {name!r} {fault}; it gives a PolicyLoss with either `loss_BT` or "
            "`loss_B`, and figures of the same shapes (see trinity/algorithm/policy_loss/inputs.py)"
        )


def _two_rows() -> PolicyInputs:
    return PolicyInputs(
        logprobs_BT=torch.full(SHAPE, -1.0, requires_grad=True),
        old_logprobs_BT=torch.full(SHAPE, -1.1),
        advantages_BT=torch.tensor([[1.0, 1.0], [-1.0, -1.0]]),
        mask_BT=torch.tensor([[True, True], [True, False]]),
        reference_logprobs_BT=torch.full(SHAPE, -1.2),
        is_expert_B=torch.tensor([False, True]),
        chosen_BT=torch.tensor([[True, False], [False, False]]),
    )


def _error_in(loss: object) -> str:
    """Describes the error in the result; empty if there is none."""
    if not isinstance(loss, PolicyLoss):
        return f"gives {type(loss).__name__}"
    losses = [values for values in (loss.loss_BT, loss.loss_B, loss.loss) if values is not None]
    if len(losses) != 1:
        return "gives both losses of tokens and of rows, or neither"
    expected = () if loss.loss is not None else SHAPE[: 1 if loss.loss_BT is None else 2]
    if tuple(losses[0].shape) != expected:
        return f"gives a loss of shape {list(losses[0].shape)} where {list(expected)} is expected"
    if not losses[0].requires_grad:
        return "gives a loss that does not depend on `logprobs_BT`"
    for name, values in loss.metrics.items():
        if not isinstance(values, torch.Tensor) or tuple(values.shape) not in (SHAPE, SHAPE[:1]):
            return f"gives a figure {name!r} that is no tensor of tokens or rows"
    return ""
