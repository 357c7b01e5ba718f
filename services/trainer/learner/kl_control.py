"""The coefficients of the two KL terms over the steps."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from trinity.algorithm.kl.controller import KlController, kl_controller
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.base import Args

FILE_NAME = "kl.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCoefficients:
    """Coefficients of the penalty on rewards and of the term in the loss.

    control = KlCoefficients.from_plan(plan)
    control = control.after_step(penalised=0.02, in_loss=None, num_rows=64)
    """

    penalty: KlController
    loss: KlController

    @classmethod
    def from_plan(cls, plan: StagePlan) -> "KlCoefficients":
        """Returns the coefficients at the beginning of the stage.

        Raises: UserError when an argument that adaptation needs is missing.
        """
        algorithm = plan.algorithm
        return cls(
            penalty=_controller(algorithm.kl_penalty_fn_args),
            loss=_controller(algorithm.kl_loss_fn_args),
        )

    def after_step(
        self, *, penalised: float | None, in_loss: float | None, num_rows: int
    ) -> "KlCoefficients":
        """Returns the coefficients after a step that measured these divergences; None: not
        measured.
        """
        return KlCoefficients(
            penalty=_updated(self.penalty, penalised, num_rows),
            loss=_updated(self.loss, in_loss, num_rows),
        )

    def save(self, directory: Path) -> None:
        """Writes the state into a checkpoint."""
        state = {"penalty": self.penalty.state(), "loss": self.loss.state()}
        (directory / FILE_NAME).write_text(json.dumps(state, indent=1, sort_keys=True))

    def load(self, directory: Path) -> "KlCoefficients":
        """Returns the saved state; checkpoints from before KL control have no such file."""
        path = directory / FILE_NAME
        if not path.exists():
            return self
        state = json.loads(path.read_text())
        return replace(
            self,
            penalty=self.penalty.from_state(state["penalty"]),
            loss=self.loss.from_state(state["loss"]),
        )


def _controller(arguments: Args) -> KlController:
    make: Callable[..., KlController] = kl_controller
    return make(**arguments)


def _updated(controller: KlController, kl: float | None, num_rows: int) -> KlController:
    return controller if kl is None else controller.updated(kl=kl, batch_size=num_rows)
