"""Input and output types of policy losses; B rows, T tokens, `mask_BT` marks those that count.

def reinforce(inputs: PolicyInputs) -> PolicyLoss:
    return PolicyLoss(name="pg_loss", loss_BT=-inputs.advantages_BT * inputs.logprobs_BT)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from trinity.algorithm.aggregation import LossAggMode
from trinity.errors import UserError
from trinity.types import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInputs:
    """Part of an optimizer batch; all other tensors hold 0 where the mask is false."""

    logprobs_BT: torch.Tensor
    """By the policy in training; the only tensor with a gradient."""
    old_logprobs_BT: torch.Tensor
    """By the policy in the ratio's denominator: the rollout policy or the proximal one."""
    advantages_BT: torch.Tensor
    mask_BT: torch.Tensor
    """Bool: true where the policy generated the token and it is trained on."""
    reference_logprobs_BT: torch.Tensor | None = None
    """By the stage's starting weights; None where the algorithm has no reference."""
    is_expert_B: torch.Tensor | None = None
    """Bool: true for expert rows among the rollouts; None without expert rows."""
    chosen_BT: torch.Tensor | None = None
    """Bool: tokens that the loss treats differently, if it has a token selection; or the numbers
    that this gives to tokens."""
    step: int = 1
    """Train step of the stage, from 1."""


Share = Literal["tokens", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Losses per token or row, aggregated later so that splitting a batch does not change them.

    Exactly one of `loss_BT`, `loss_B` and `loss` is given. A row's loss is averaged over the rows
    that have tokens to train on; a pair is two neighbouring rows, chosen first, and both carry its
    loss.
    """

    name: str
    """Name of the aggregated loss among the metrics."""
    loss_BT: torch.Tensor | None = None
    loss_B: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    """One number for these rows, which the function aggregates itself, as Trinity-RFT's do."""
    share: Share = "rows"
    """The part of the whole batch by which `loss` counts: of its tokens or of its rows."""
    agg_mode: LossAggMode | None = None
    """Overrides the user's `loss_agg_mode`."""
    expert_agg_mode: LossAggMode | None = None
    """The mode for expert rows, which are then normalised separately, as the others are."""
    metrics: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further metrics of each token, [B, T], or row, [B]; averaged over the whole batch's tokens or
    rows. Names with the prefix `expert/` or `usual/` are averaged over such rows alone."""


PolicyLossFn = Callable[..., PolicyLoss]
"""Takes `PolicyInputs`, then `policy_loss_fn_args` by keyword."""


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
    """Describes the error in the result; empty if the result is valid."""
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
