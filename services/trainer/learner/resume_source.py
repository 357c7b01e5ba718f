"""Loads weights and optimizer state: of the stage's own checkpoint, or of a former run."""

import logging
from pathlib import Path
from typing import Any

import torch
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.checkpoints.lora import lora_adapter_of
from services.trainer.collectives import Ranks
from services.trainer.learner.verl_calls import on_device
from trinity.config.plan.start_checkpoint import KEY
from trinity.errors import UserError

logger = logging.getLogger(__name__)

OF_THE_PLAN = ("betas", "weight_decay")
"""Settings that PyTorch restores with the state of an optimizer; a user may change them between two
starts. The learning rate is given for each step."""


def load_own_checkpoint(worker: TinkerTrainingWorker, directory: Path) -> None:
    """Loads a checkpoint of this stage; the optimizer's settings stay those of the plan."""
    optimizer = worker.engine.optimizer
    planned = [
        {name: group[name] for name in OF_THE_PLAN if name in group}
        for group in optimizer.param_groups
    ]
    worker.load_checkpoint(str(directory))
    for group, settings in zip(optimizer.param_groups, planned, strict=True):
        group.update(settings)


def load_former_run(worker: TinkerTrainingWorker, directory: Path, ranks: Ranks) -> None:
    """Loads this rank's part; rates, decay and random states stay those of the new run.

    The folder is one that a user names, so files are read with `weights_only`, which runs no code.

    Raises: UserError if it does not fit the model or the ranks.
    """
    engine = worker.engine
    try:
        _load_part(worker, directory, f"world_size_{ranks.num_ranks}_rank_{ranks.rank}.pt")
    except Exception as error:  # torch raises many kinds for files of another model
        raise UserError(
            f"`{KEY}`: {directory} cannot be loaded "
            f"({str(error).splitlines()[0]}): it must be of this run's model, with as many ranks "
            "and the same `trainer.fsdp_size`"
        ) from error
    if engine.is_optimizer_offload_enabled:
        engine.to(device="cpu", model=False, optimizer=True, grad=False)


def _load_part(worker: TinkerTrainingWorker, directory: Path, part: str) -> None:
    weights, optimizer = directory / f"model_{part}", directory / f"optim_{part}"
    with on_device(worker):
        _load_weights(worker.engine.module, torch.load(weights, weights_only=True))
    if optimizer.is_file():
        saved = torch.load(optimizer, weights_only=True)
        _load_optimizer_state(worker.engine.optimizer, saved, optimizer)


def _load_weights(module: torch.nn.Module, saved: dict[str, Any]) -> None:
    """Loads weights; checkpoints of adapters do not hold the base model."""
    result = module.load_state_dict(saved, strict=lora_adapter_of(module) is None)
    missing = [name for name in result.missing_keys if ".lora_" in name]
    if missing or result.unexpected_keys:
        raise ValueError(f"names differ: {[*missing, *result.unexpected_keys][0]}")


def _load_optimizer_state(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], file: Path
) -> None:
    own = optimizer.state_dict()
    kinds = [set(state["param_groups"][0]) for state in (saved, own)]
    if kinds[0] != kinds[1]:
        logger.warning(
            "the optimizer starts fresh: the saved state is of another kind",
            extra={"file": str(file)},
        )
        return
    optimizer.load_state_dict({"state": saved["state"], "param_groups": own["param_groups"]})
