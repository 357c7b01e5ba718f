"""What tests of learners share: how to read weights, and gradients as the optimizers use them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from services.trainer.types import TrainBatch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

Build = Callable[[StagePlan], "Learner"]
Arrays = dict[str, npt.NDArray[np.float32]]
RATE = 1e-3


def weights_of(learner: "Learner") -> Arrays:
    return {name: tensor.clone().numpy() for name, tensor in learner.weights()}


def critic_weights_of(learner: "Learner") -> Arrays:
    critic = learner._roles.critic
    assert critic is not None
    parameters, _ = critic._worker.engine.get_per_tensor_param()
    return {name: tensor.detach().clone().numpy() for name, tensor in parameters}


def stepped(learner: "Learner", batch: TrainBatch, rate: float = RATE) -> dict[str, float]:
    """The figures of a step of actor and critic."""
    return learner.train_step(batch, rate, rate).metrics


def gradients_of(learner: "Learner", batch: TrainBatch) -> Arrays:
    """The gradients of a step, of the actor and of the critic if there is one."""
    workers = {"actor": learner._roles.actor.worker}
    if learner._roles.critic is not None:
        workers["critic"] = learner._roles.critic._worker
    found: Arrays = {}
    for role, worker in workers.items():
        _watch(role, worker.engine, found)
    stepped(learner, batch)
    return found


def _watch(role: str, engine: object, found: Arrays) -> None:
    take_step = engine.optimizer_step  # type: ignore[attr-defined]  # verl carries no types

    def watch() -> float:
        for name, parameter in engine.module.named_parameters():  # type: ignore[attr-defined]
            if not parameter.requires_grad:  # below an adapter
                continue
            found[f"{role}/{name}"] = parameter.grad.full_tensor().clone().numpy()
        norm: float = take_step()
        return norm

    engine.optimizer_step = watch  # type: ignore[attr-defined]


def assert_close(left: Arrays, right: Arrays) -> None:
    """Sums in another order differ by a share of an array's largest element."""
    assert left.keys() == right.keys()
    for name, array in left.items():
        atol = 1e-6 * max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(right[name], array, rtol=1e-4, atol=atol, err_msg=name)


def assert_same(left: Arrays, right: Arrays) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(right[name], array, err_msg=name)
