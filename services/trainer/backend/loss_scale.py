"""The loss scale for gradients in float16, where small values underflow."""

from dataclasses import dataclass
from typing import cast

import torch
from torch.distributed.tensor import DTensor

FIRST_FACTOR = 2.0**16
GROWTH_INTERVAL = 400
"""Steps without an overflow after which the factor is doubled, as in verl."""


@dataclass(slots=True)
class LossScale:
    """A power of two that losses are multiplied by, and gradients divided by before a step.

    A step with a gradient that is not finite on any rank is left out, and the factor is halved.
    verl's engines call it as torch's GradScaler, which cannot divide sharded gradients without
    GPUs.

        scale.scale(loss).backward()
        scale.unscale_(optimizer)
        scale.step(optimizer)
        scale.update()
    """

    factor: float = FIRST_FACTOR
    good_steps: int = 0
    """Steps since the last overflow, or since the factor was doubled."""
    has_overflown: bool = False
    """True between `unscale_` and `update` if a gradient is not finite."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the factor."""
        return loss * self.factor

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients by the factor, and looks for those that are not finite."""
        gradients = [_own_part(gradient) for gradient in _gradients_of(optimizer)]
        device = gradients[0].device if gradients else torch.device("cpu")
        bad = torch.zeros((), device=device)
        for gradient in gradients:
            gradient.mul_(1.0 / self.factor)
            bad = torch.maximum(bad, (~gradient.isfinite().all()).to(bad.dtype))
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(bad, op=torch.distributed.ReduceOp.MAX)
        self.has_overflown = bool(bad)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the optimizer's step, unless a gradient has overflown."""
        if self.has_overflown:
            optimizer.zero_grad()
        else:
            optimizer.step()

    def update(self) -> None:
        """Halves the factor after an overflow, and doubles it after many steps without one."""
        self.good_steps = 0 if self.has_overflown else self.good_steps + 1
        if self.has_overflown:
            self.factor = max(self.factor / 2, 1.0)
        elif self.good_steps == GROWTH_INTERVAL:
            self.factor, self.good_steps = self.factor * 2, 0
        self.has_overflown = False

    def state_dict(self) -> dict[str, float]:
        """Returns the state for a checkpoint."""
        return {"factor": self.factor, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continues from a checkpoint."""
        self.factor, self.good_steps = float(state["factor"]), int(state["good_steps"])


def _gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    groups = optimizer.param_groups
    return [each.grad for group in groups for each in group["params"] if each.grad is not None]


def _own_part(gradient: torch.Tensor) -> torch.Tensor:
    """Returns a rank's part of a gradient, in its own memory."""
    return cast(DTensor, gradient).to_local() if isinstance(gradient, DTensor) else gradient
