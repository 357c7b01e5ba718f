"""Checkpoints read outside of a run, by Trinity-RFT's import path."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.errors import UserError
from trinity.rft.import_hook import resolve
from trinity.weights.layout import RANK_PART, SHARDS, STATE_NAME, WEIGHT, is_sharded

if TYPE_CHECKING:
    import torch

__all__ = ["load_fsdp_state_dict_from_verl_checkpoint"]

_STEP = re.compile(r"global_step_(\d+)")
_OURS = re.compile(r"step-(\d+)-(\d+)")


def __getattr__(name: str) -> object:
    return resolve(__name__, name)


def load_fsdp_state_dict_from_verl_checkpoint(
    checkpoint_path: str | Path,
) -> "dict[str, torch.Tensor]":
    """Returns the whole weights of a checkpoint by their Hugging Face names, for `load_state_dict`.

    The path is a checkpoint of a run here (`.../stages/<stage>/checkpoints/step-<n>-<life>`), one
    of verl (`.../global_step_<n>/actor`), or `<run>/global_step_<n>/actor` of a run here, which is
    the checkpoint of that step in its last stage. Files are read without running code in them.

    Raises: UserError when there is no such checkpoint, or it is of an adapter.
    """
    directory = _directory(Path(checkpoint_path))
    found = _from_shards(directory) if is_sharded(directory) else _from_ranks(directory)
    if any(".lora_" in name for name in found):
        raise UserError(
            f"{directory} holds an adapter without its base: use a published version, which is "
            f"whole: {_versions(directory)}"
        )
    return found


def _from_shards(directory: Path) -> "dict[str, torch.Tensor]":
    """Reads what any number of ranks wrote side by side.

    Raises: UserError when a part is missing.
    """
    import torch

    from trinity.weights.shards import read_shards, shapes_of

    whole = {
        name: torch.empty(shape.size, dtype=shape.dtype)
        for name, shape in shapes_of(directory / SHARDS).items()
        if name.startswith(WEIGHT)
    }
    tied = json.loads((directory / STATE_NAME).read_text())["tied"]
    try:
        if not whole or not {f"{WEIGHT}{first}" for first in tied.values()} <= whole.keys():
            raise ValueError("files are missing")
        read_shards(whole, directory / SHARDS)
    except ValueError as error:
        raise UserError(f"{directory} is not whole: {error}") from error
    found = {name.removeprefix(WEIGHT): tensor for name, tensor in whole.items()}
    return found | {name: found[first] for name, first in tied.items()}


def _from_ranks(directory: Path) -> "dict[str, torch.Tensor]":
    """Puts the parts together of which each rank wrote one, as verl does."""
    parts = [_read(file) for file in _parts(directory)]
    return {name: _whole([part[name] for part in parts]) for name in parts[0]}


def _directory(path: Path) -> Path:
    """Returns the folder with the parts.

    Raises: UserError.
    """
    for found in (path, path / "actor"):
        if is_sharded(found) or any(found.glob("model_world_size_*_rank_*.pt")):
            return found
    step = next((m for part in (path, path.parent) if (m := _STEP.fullmatch(part.name))), None)
    if step is None:
        raise UserError(
            f"{path} holds no checkpoint: give `<run>/global_step_<n>/actor`, or a folder "
            "`stages/<stage>/checkpoints/step-<n>-<life>` of the run"
        )
    run = path.parent if _STEP.fullmatch(path.name) else path.parent.parent
    return _of_step(run, int(step[1]))


def _of_step(run: Path, step: int) -> Path:
    """Returns the checkpoint of a step: the newest life of the stage that was trained last."""
    known = sorted(_checkpoints(run))
    wanted = [(changed, life, path) for changed, at, life, path in known if at == step]
    if not wanted:
        steps = ", ".join(str(at) for at in sorted({at for _, at, _, _ in known})) or "none"
        raise UserError(
            f"{run} has no checkpoint of step {step}; those that are kept are of steps {steps} "
            "(`trainer.save_interval`, `trainer.max_checkpoints_to_keep`)"
        )
    return max(wanted)[2]


def _checkpoints(run: Path) -> Iterator[tuple[float, int, int, Path]]:
    for path in run.glob("stages/*/checkpoints/step-*"):
        if (name := _OURS.fullmatch(path.name)) is not None:
            yield path.stat().st_mtime, int(name[1]), int(name[2]), path


def _parts(directory: Path) -> list[Path]:
    """Returns the parts in the order of their ranks.

    Raises: UserError when one is missing.
    """
    found = [
        (int(name[2]), int(name[1]), file)
        for file in directory.iterdir()
        if (name := RANK_PART.fullmatch(file.name))
    ]
    sizes = {size for _, size, _ in found}
    if len(sizes) != 1 or len(found) != max(sizes):
        raise UserError(f"{directory} is not whole: it holds {len(found)} of its parts")
    return [file for _, _, file in sorted(found)]


def _read(file: Path) -> "dict[str, torch.Tensor]":
    import torch
    import torch.distributed.tensor  # registers the types that may be read

    read: dict[str, torch.Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    return read


def _whole(parts: "Sequence[torch.Tensor]") -> "torch.Tensor":
    """Puts a tensor together; ranks of a replica hold the same parts as those of another one."""
    import torch
    from torch.distributed.tensor import DTensor

    first = parts[0]
    if not isinstance(first, DTensor):
        return first
    dims = [placement.dim for placement in first.placements if placement.is_shard()]
    local = [part.to_local() for part in parts if isinstance(part, DTensor)]
    if not dims:
        return local[0]
    whole = torch.cat(_one_replica(local, first), dim=dims[0])
    return whole.reshape(first.shape) if whole.shape != first.shape else whole


def _one_replica(local: "list[torch.Tensor]", first: "torch.Tensor") -> "list[torch.Tensor]":
    """Returns the parts of the first replica: their rows are those of the whole tensor."""
    dim = next(p.dim for p in first.placements if p.is_shard())
    taken, rows = [], 0
    for part in local:
        if rows < first.shape[dim]:
            taken.append(part)
            rows += part.shape[dim]
    return taken


def _versions(directory: Path) -> str:
    """Returns the folders of the stage's published versions."""
    stage = directory.parent.parent
    found = sorted(str(path.parent) for path in stage.glob("weights/*/config.json"))
    return ", ".join(found) or f"none is left in {stage / 'weights'}"
