"""Loads weights and optimizer state: of the stage's own checkpoint, or of a former run.

A run that begins with a former run's checkpoint counts from step 1, unlike veRL's: batches,
versions and the taskset's position begin with the run. A folder that a user names is read with
`weights_only`, because a pickle runs code.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.checkpoints.lora import lora_adapter_of
from services.trainer.checkpoints.worker_state import (
    OPTIMIZER_PART,
    Contents,
    has_kind_of,
    load_optimizer,
    load_state,
    load_weights,
    read_state,
    save_state,
    saved_contents,
)
from services.trainer.learner.verl_calls import WorkerCalls, on_device
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import KEY
from trinity.errors import UserError
from trinity.runtime.life import LifeSigns
from trinity.weights.layout import is_sharded, rank_part
from trinity.weights.manifest import bytes_below

logger = logging.getLogger(__name__)
NOT_LOADED = "the optimizer starts fresh: `trainer.load_contents` leaves it out"
NOT_SAVED = "the optimizer starts fresh: it was not saved"

OF_THE_PLAN = ("betas", "weight_decay")
"""Settings that PyTorch restores with the state of an optimizer; a user may change them between two
starts. The learning rate is given for each step."""


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """The parts of a worker's state that checkpoints have, and that are read from them."""

    saved: Contents
    loaded: Contents

    @classmethod
    def of_plan(cls, plan: StagePlan) -> "CheckpointContents":
        """Returns those that the user chose; weights are always among them."""
        trainer = plan.config.trainer
        return cls(
            frozenset(trainer.save_contents) | {"model"},
            frozenset(trainer.load_contents) | {"model"},
        )


def save_checkpoint(
    worker: TinkerTrainingWorker, directory: Path, step: int, calls: WorkerCalls, contents: Contents
) -> None:
    """Writes this rank's part of the state: weights, optimizer, scheduler, random states."""
    directory.mkdir(exist_ok=True)
    save_state(worker, directory, step, calls.ranks, contents, calls.life)


def load_own_checkpoint(
    worker: TinkerTrainingWorker, directory: Path, calls: WorkerCalls, contents: Contents
) -> None:
    """Loads a checkpoint of this stage; the optimizer's settings stay those of the plan."""
    with on_device(worker):
        load_state(worker, directory, calls.ranks, OF_THE_PLAN, contents, calls.life)
    _offload_optimizer(worker)


def load_former_run(
    worker: TinkerTrainingWorker, directory: Path, calls: WorkerCalls, contents: Contents
) -> None:
    """Loads this rank's part; rates, decay and random states stay those of the new run.

    So does the optimizer's state unless `contents` name it.

    The folder is one that a user names, so files are read in ways that run no code.

    Raises: UserError if it does not fit the model or the ranks.
    """
    is_ours = is_sharded(directory)
    try:
        if is_ours:
            _load_shards(worker, directory, contents, calls.life)
        else:
            part = rank_part(calls.ranks.num_ranks, calls.ranks.rank)
            with calls.life.on_disk(bytes_below(directory)):
                _load_part(worker, directory, part, contents)
    except Exception as error:  # torch raises many kinds for files of another model
        fits = "" if is_ours else ", with as many ranks and the same `trainer.fsdp_size`"
        raise UserError(
            f"`{KEY}`: {directory} cannot be loaded "
            f"({(str(error) or type(error).__name__).splitlines()[0]}): it must be of this run's "
            f"model{fits}"
        ) from error
    _offload_optimizer(worker)


def _offload_optimizer(worker: TinkerTrainingWorker) -> None:
    if worker.engine.is_optimizer_offload_enabled:
        worker.engine.to(device="cpu", model=False, optimizer=True, grad=False)


def _load_shards(
    worker: TinkerTrainingWorker, directory: Path, contents: Contents, life: LifeSigns
) -> None:
    with on_device(worker):
        load_weights(worker.engine.module, directory, life)
        state = read_state(directory)
        if OPTIMIZER_PART not in contents:
            logger.warning(NOT_LOADED)
        elif OPTIMIZER_PART not in saved_contents(state):
            logger.warning(NOT_SAVED)
        elif has_kind_of(worker.engine.optimizer, state):
            load_optimizer(worker, directory, state, tuple(state["groups"][0]), life)
        else:
            _log_fresh_optimizer(directory)


def _log_fresh_optimizer(source: Path) -> None:
    logger.warning(
        "the optimizer starts fresh: the saved state is of another kind",
        extra={"file": str(source)},
    )


def _load_part(
    worker: TinkerTrainingWorker, directory: Path, part: str, contents: Contents
) -> None:
    weights, optimizer = directory / f"model_{part}", directory / f"optim_{part}"
    with on_device(worker):
        _load_weights(worker.engine.module, torch.load(weights, weights_only=True))
    if OPTIMIZER_PART not in contents:
        logger.warning(NOT_LOADED)
    elif optimizer.is_file():
        saved = torch.load(optimizer, weights_only=True)
        _load_optimizer_state(worker.engine.optimizer, saved, optimizer)
    else:
        logger.warning(NOT_SAVED)


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
        _log_fresh_optimizer(file)
        return
    optimizer.load_state_dict({"state": saved["state"], "param_groups": own["param_groups"]})
