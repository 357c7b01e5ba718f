"""What tests of learners share: how to read weights, and gradients as the optimizers use them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed.tensor import DTensor

from services.trainer.types import TrainBatch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner

Build = Callable[[StagePlan], "Learner"]
Arrays = dict[str, npt.NDArray[np.float32]]
RATE = 1e-3


def weights_of(learner: "Learner") -> Arrays:
    return {name: tensor.detach().cpu().clone().numpy() for name, tensor in learner.weights()}


def critic_weights_of(learner: "Learner") -> Arrays:
    critic = learner._roles.critic
    assert critic is not None
    parameters, _ = critic._worker.engine.get_per_tensor_param()
    return {name: tensor.detach().cpu().clone().numpy() for name, tensor in parameters}


def stepped(learner: "Learner", batch: TrainBatch, rate: float = RATE) -> dict[str, float]:
    """The figures of a step of actor and critic."""
    return learner.train_step(batch, rate, rate).metrics


def gradients_of(learner: "Learner", batch: TrainBatch) -> Arrays:
    """The gradients of a step, of the actor and of the critic if there is one."""
    return gradients_and_figures(learner, batch)[0]


def gradients_and_figures(learner: "Learner", batch: TrainBatch) -> tuple[Arrays, dict[str, float]]:
    """Both of one step."""
    workers = {"actor": learner._roles.actor.worker}
    if learner._roles.critic is not None:
        workers["critic"] = learner._roles.critic._worker
    found: Arrays = {}
    for role, worker in workers.items():
        _watch(role, worker.engine, found)
    figures = stepped(learner, batch)
    return found, figures


def state_of(learner: "Learner") -> dict[str, npt.NDArray[np.generic]]:
    """All that a checkpoint restores, whole, by name. Collective."""
    workers = {"actor": learner._roles.actor.worker}
    if learner._roles.critic is not None:
        workers["critic"] = learner._roles.critic._worker
    if learner._roles.moving is not None:
        moving = learner._roles.moving._worker.engine.module.state_dict()
        references = {f"reference/{name}": _whole(tensor) for name, tensor in moving.items()}
    else:
        references = {}
    found = {
        "random": torch.get_rng_state().numpy(),
        "numpy": np.random.get_state(legacy=False)["state"]["key"],
        **references,
    }
    for role, worker in workers.items():
        engine = worker.engine
        names = {parameter: name for name, parameter in engine.module.named_parameters()}
        found |= {
            f"{role}/weight/{name}": _whole(tensor)
            for name, tensor in engine.module.state_dict().items()
        }
        found |= {
            f"{role}/optimizer/{names[parameter]}/{key}": _whole(value)
            for parameter, entries in engine.optimizer.state.items()
            for key, value in entries.items()
            if value is not None
        }
        found[f"{role}/scheduler"] = np.array(engine.lr_scheduler.last_epoch)
    return found


def _whole(tensor: torch.Tensor) -> npt.NDArray[np.generic]:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    array: npt.NDArray[np.generic] = whole.detach().cpu().clone().numpy()
    return array


def _watch(role: str, engine: object, found: Arrays) -> None:
    take_step = engine.optimizer_step  # type: ignore[attr-defined]  # verl carries no types

    def watch() -> float:
        for name, parameter in engine.module.named_parameters():  # type: ignore[attr-defined]
            if not parameter.requires_grad:  # below an adapter
                continue
            found[f"{role}/{name}"] = parameter.grad.full_tensor().cpu().clone().numpy()
        norm: float = take_step()
        return norm

    engine.optimizer_step = watch  # type: ignore[attr-defined]


def assert_close(left: Arrays, right: Arrays) -> None:
    """Sums in another order differ by a share of an array's largest element."""
    assert left.keys() == right.keys()
    for name, array in left.items():
        atol = 1e-6 * max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(right[name], array, rtol=1e-4, atol=atol, err_msg=name)


def assert_same(
    left: Mapping[str, npt.NDArray[np.generic]], right: Mapping[str, npt.NDArray[np.generic]]
) -> None:
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(right[name], array, err_msg=name)
