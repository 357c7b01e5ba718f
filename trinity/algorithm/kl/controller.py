"""The coefficient of the divergence from the reference: fixed, or adapted towards a target."""

import math
from dataclasses import dataclass, replace

from trinity.errors import UserError

LARGEST_CORRECTION = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class KlController:
    """An immutable value: the same observations lead to the same coefficient.

    controller = kl_controller(kl_coef=0.1, adaptive=True, target_kl=6.0, horizon=10_000)
    ...
    controller = controller.updated(kl=observed, batch_size=256)
    checkpoint["kl"] = controller.state()
    """

    coef: float
    target_kl: float | None = None
    """None keeps the coefficient fixed."""
    horizon: float | None = None
    """Number of rows over which the coefficient changes by at most a fifth."""
    initial_coef: float | None = None
    """The configured coefficient of an adaptive one."""

    def updated(self, *, kl: float, batch_size: int) -> "KlController":
        """coef (1 + clip(kl / target - 1, -0.2, 0.2) batch_size / horizon).

        The batch size is capped at the horizon, so that the coefficient never becomes negative; a
        divergence that is not finite is ignored. https://arxiv.org/abs/1909.08593
        """
        if self.target_kl is None or self.horizon is None or not math.isfinite(kl):
            return self
        error = kl / self.target_kl - 1.0
        error = max(-LARGEST_CORRECTION, min(LARGEST_CORRECTION, error))
        share = min(batch_size / self.horizon, 1.0)
        return replace(self, coef=self.coef * (1.0 + error * share))

    def state(self) -> dict[str, float]:
        """Returns the state to keep in a checkpoint."""
        initial = {} if self.initial_coef is None else {"initial": self.initial_coef}
        return {"coef": self.coef, **initial}

    def from_state(self, state: dict[str, float]) -> "KlController":
        """Returns the state of the checkpoint; a fixed one keeps the configured value.

        So does an adaptive one that is configured with another value than the checkpoint's.
        """
        if self.target_kl is None or state.get("initial") != self.initial_coef:
            return self
        return replace(self, coef=float(state["coef"]))


def kl_controller(
    *,
    kl_coef: float = 0.001,
    adaptive: bool = False,
    target_kl: float | None = None,
    horizon: float | None = None,
) -> KlController:
    """Builds a controller from `kl_penalty_fn_args` or `kl_loss_fn_args`.

    Raises: UserError when the coefficient is negative, or an adaptive one lacks its target.
    """
    if not (math.isfinite(kl_coef) and kl_coef >= 0):
        raise UserError(f"kl_coef is {kl_coef}; give a number from 0 up")
    if not adaptive:
        return KlController(coef=kl_coef)
    for name, value in (("target_kl", target_kl), ("horizon", horizon)):
        if value is None:
            raise UserError(f"adaptive KL needs {name}; give one, or set adaptive to false")
        if not (math.isfinite(value) and value > 0):
            raise UserError(f"adaptive KL needs {name} above 0; it is {value}")
    if kl_coef == 0:
        raise UserError("adaptive KL needs kl_coef above 0; 0 stays 0 under any multiplication")
    return KlController(coef=kl_coef, target_kl=target_kl, horizon=horizon, initial_coef=kl_coef)
