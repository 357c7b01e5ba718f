"""The full state of a worker in a checkpoint: each rank writes its shards, any number reads them.

shards/<rank>-<number>.safetensors   weights, and the tensors of the optimizer, by name
random/<rank>.json                   the random states of each rank, if wanted
state.json                           the rest: settings and counters of optimizer and scheduler
huggingface/config.json              the model's configuration
"""

import base64
import json
import logging
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_name, get_torch_device
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from services.trainer.collectives import Ranks
from trinity.config.schema.trainer import WHOLE_STATE
from trinity.runtime.life import LifeSigns
from trinity.weights.layout import (
    LAYOUT,
    MODEL_CONFIG,
    OPTIMIZER,
    SHARDS,
    STATE_NAME,
    WEIGHT,
)
from trinity.weights.shards import TensorShape, read_shards, shapes_of, write_shards

RANDOM = "random"
OPTIMIZER_PART, EXTRA_PART = "optimizer", "extra"
EMPTY: tuple[dict[str, torch.Tensor], dict[str, dict[str, float]]] = ({}, {})

logger = logging.getLogger(__name__)
Contents = frozenset[str]
"""Parts of a checkpoint, as `trainer.save_contents` names them."""

State = dict[str, Any]


def save_state(
    worker: TinkerTrainingWorker,
    directory: Path,
    step: int,
    ranks: Ranks,
    contents: Contents,
    life: LifeSigns,
) -> None:
    """Writes this rank's part. Collective, though no rank waits for another one."""
    engine = worker.engine
    weights, tied = _weights_of(engine.module)
    moments, scalars = (
        _optimizer_tensors(engine.module, engine.optimizer) if OPTIMIZER_PART in contents else EMPTY
    )
    write_shards(_prefixed(WEIGHT, weights) | moments, directory / SHARDS, ranks.rank, life)
    if EXTRA_PART in contents:
        folder = directory / RANDOM
        folder.mkdir(exist_ok=True)
        (folder / f"{ranks.rank}.json").write_text(json.dumps(_random_state()))
    if ranks.is_first:
        engine.module.config.save_pretrained(directory / MODEL_CONFIG)
        state = {
            "layout": LAYOUT,
            "step": step,
            "num_ranks": ranks.num_ranks,
            "contents": sorted(contents),
            "tied": tied,
            "groups": [_settings(group) for group in engine.optimizer.param_groups],
            "scalars": scalars,
            "scheduler": engine.lr_scheduler.state_dict(),
        }
        if engine.scaler is not None:
            state["loss_scale"] = engine.scaler.state_dict()
        (directory / STATE_NAME).write_text(json.dumps(state))


def save_weights(module: nn.Module, directory: Path, rank: int, life: LifeSigns) -> None:
    """Writes this rank's part of the weights alone, for `load_weights`."""
    weights, _ = _weights_of(module)
    write_shards(_prefixed(WEIGHT, weights), directory / SHARDS, rank, life)


def load_state(
    worker: TinkerTrainingWorker,
    directory: Path,
    ranks: Ranks,
    of_the_plan: tuple[str, ...],
    contents: Contents,
    life: LifeSigns,
) -> None:
    """Continues from a checkpoint of any number of ranks, with those `contents` that it has.

    Raises: ValueError if it is of another model or optimizer.
    """
    state = read_state(directory)
    load_weights(worker.engine.module, directory, life)
    found = frozenset(contents) & saved_contents(state)
    log_fresh(found, directory)
    if OPTIMIZER_PART in found:
        load_optimizer(worker, directory, state, of_the_plan, life)
        if worker.engine.scaler is not None and "loss_scale" in state:
            worker.engine.scaler.load_state_dict(state["loss_scale"])
    if EXTRA_PART not in found:
        return
    worker.engine.lr_scheduler.load_state_dict(state["scheduler"])
    file = directory / RANDOM / f"{ranks.rank % state['num_ranks']}.json"
    _restore_random_state(json.loads(file.read_text()))


def log_fresh(loaded: Contents, directory: Path) -> None:
    """Warns of the parts of the state that are not among those loaded."""
    if missing := frozenset(WHOLE_STATE) - {"model"} - loaded:
        logger.warning(
            "parts of the state start fresh", extra={"parts": sorted(missing), "from": directory}
        )


def saved_contents(state: State) -> Contents:
    """Returns the parts that a checkpoint has."""
    return frozenset(state["contents"])


def read_state(directory: Path) -> State:
    """Reads the part of the state that is not tensors.

    Raises: ValueError if it was written by a later release.
    """
    state: State = json.loads((directory / STATE_NAME).read_text())
    if state["layout"] != LAYOUT:
        raise ValueError(f"its layout {state['layout']} is of a later release")
    return state


def load_weights(module: nn.Module, directory: Path, life: LifeSigns) -> None:
    """Loads the weights; a checkpoint of an adapter holds the adapter's alone.

    Raises: ValueError if names or shapes differ.
    """
    weights, _ = _weights_of(module)
    named = _prefixed(WEIGHT, weights)
    saved = {name for name in shapes_of(directory / SHARDS) if name.startswith(WEIGHT)}
    if differing := saved ^ named.keys():
        raise ValueError(f"names differ: {min(differing).removeprefix(WEIGHT)}")
    with torch.no_grad():
        read_shards(named, directory / SHARDS, life)


def load_optimizer(
    worker: TinkerTrainingWorker,
    directory: Path,
    state: State,
    of_the_plan: tuple[str, ...],
    life: LifeSigns,
) -> None:
    """Loads the optimizer's state; settings `of_the_plan` stay those of this run."""
    optimizer, module = worker.engine.optimizer, worker.engine.module
    saved = shapes_of(directory / SHARDS)
    names = _names_of(module)
    entries: dict[str, dict[str, torch.Tensor]] = {}
    for parameter in _parameters(optimizer):
        entries[names[parameter]] = dict(_fresh_entries(names[parameter], parameter, saved))
    tensors = {
        f"{OPTIMIZER}{name}.{key}": tensor
        for name, own in entries.items()
        for key, tensor in own.items()
    }
    read_shards(tensors, directory / SHARDS, life)
    for name, own in state["scalars"].items():
        entries[name] |= {key: torch.tensor(value) for key, value in own.items()}
    own_state = optimizer.state_dict()
    groups = [
        group | {key: value for key, value in settings.items() if key not in of_the_plan}
        for group, settings in zip(own_state["param_groups"], state["groups"], strict=True)
    ]
    numbered = enumerate(names[parameter] for parameter in _parameters(optimizer))
    found = {number: entries[name] for number, name in numbered if entries[name]}
    optimizer.load_state_dict({"state": found, "param_groups": groups})


def has_kind_of(optimizer: torch.optim.Optimizer, state: State) -> bool:
    """Returns True if the saved state is of an optimizer of this kind."""
    own, saved = optimizer.param_groups[0], state["groups"][0]
    return set(_settings(own)) == set(saved)


def _weights_of(module: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns the weights that a checkpoint holds, and the names that share one with another."""
    found: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}
    tied: dict[str, str] = {}
    state = module.state_dict(keep_vars=True)
    is_adapter = hasattr(module, "peft_config")
    for name, tensor in state.items():
        if is_adapter and ".lora_" not in name:
            continue
        first = names.setdefault(id(tensor), name)
        if first != name:
            tied[name] = first
            continue
        found[name] = tensor.detach()
    return found, tied


def _optimizer_tensors(
    module: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, float]]]:
    """Returns the tensors that are cut as the weights are, and numbers, which all ranks share."""
    names = _names_of(module)
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, dict[str, float]] = {}
    for parameter, entries in optimizer.state.items():
        name = names[parameter]
        for key, value in entries.items():
            if not isinstance(value, torch.Tensor):
                assert value is None, f"the optimizer's {key} of {name} cannot be saved"
            elif isinstance(value, DTensor) or value.numel() != 1:
                tensors[f"{OPTIMIZER}{name}.{key}"] = value
            else:
                scalars.setdefault(name, {})[key] = float(value)
    return tensors, scalars


def _fresh_entries(
    name: str, parameter: torch.Tensor, saved: Mapping[str, TensorShape]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields tensors to read a parameter's saved state into, cut as the parameter is."""
    for key in sorted(_keys_below(f"{OPTIMIZER}{name}.", saved)):
        shape = saved[f"{OPTIMIZER}{name}.{key}"]
        yield key, torch.zeros_like(parameter, dtype=shape.dtype, requires_grad=False)


def _keys_below(prefix: str, saved: Mapping[str, TensorShape]) -> Iterator[str]:
    for name in saved:
        if name.startswith(prefix) and "." not in name.removeprefix(prefix):
            yield name.removeprefix(prefix)


def _names_of(module: nn.Module) -> dict[torch.Tensor, str]:
    return {parameter: name for name, parameter in module.named_parameters()}


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _settings(group: Mapping[str, Any]) -> State:
    return {key: value for key, value in group.items() if key != "params"}


def _prefixed(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _random_state() -> State:
    kind, key, position, has_gauss, gauss = np.random.get_state()
    version, words, next_gauss = random.getstate()
    state: State = {
        "torch": _as_text(torch.get_rng_state()),
        "numpy": [kind, [int(word) for word in key], position, has_gauss, gauss],
        "python": [version, list(words), next_gauss],
    }
    if _has_device():
        state["device"] = _as_text(get_torch_device().get_rng_state())
    return state


def _restore_random_state(state: State) -> None:
    torch.set_rng_state(_as_state(state["torch"]))
    kind, key, *rest = state["numpy"]
    np.random.set_state((kind, np.array(key, dtype=np.uint32), *rest))
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words), next_gauss))
    if "device" in state and _has_device():
        get_torch_device().set_rng_state(_as_state(state["device"]))


def _has_device() -> bool:
    return get_device_name() != "cpu" and bool(get_torch_device().is_available())


def _as_text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _as_state(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
