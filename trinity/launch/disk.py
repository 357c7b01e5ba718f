"""Checks before a run that the disk has room for what it cannot do without."""

import shutil
from pathlib import Path

from trinity.config.plan.model import local_model_directory
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import UserError
from trinity.sizing.model_shape import count_parameters, read_shape

MEBIBYTE = 2**20
INFRASTRUCTURE_BYTES = 640 * MEBIBYTE
"""The database when it is new, its log of changes, and the least that the broker works with."""
BYTES_PER_PARAMETER = 14
"""A checkpoint with Adam's two moments, all in float32, and one version of the weights in half of
that precision: the least that is there at the same time."""


def check_disk(plan: ExperimentPlan) -> None:
    """Checks the disk of the run's directory.

    Raises: UserError when not even the first checkpoint would fit.
    """
    folder = plan.job_path
    held = _size_of(folder / "infra")
    needed = max(0, INFRASTRUCTURE_BYTES - held) + max(map(_checkpoint_bytes, plan.stages))
    free = shutil.disk_usage(_existing(folder)).free
    if free >= needed:
        return
    raise UserError(
        f"the disk of {folder} has {free // MEBIBYTE:,} MiB free, and this run needs "
        f"{-(-needed // MEBIBYTE):,} MiB at least, for its database, its broker and the first "
        "checkpoint: make room there, or choose another `checkpoint_root_dir`"
    )


def _checkpoint_bytes(stage: StagePlan) -> int:
    """Returns what a checkpoint takes; 0 where none is written or the model is not here yet."""
    if not stage.needs_training or stage.lora is not None:
        return 0
    try:
        directory = local_model_directory(stage.model_path)
        if directory is None or not (directory / "config.json").exists():
            return 0
        return BYTES_PER_PARAMETER * count_parameters(read_shape(directory / "config.json"))
    except UserError:
        return 0


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _size_of(folder: Path) -> int:
    """Returns the bytes of all files below a directory; files may go meanwhile."""
    total = 0
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue
    return total
