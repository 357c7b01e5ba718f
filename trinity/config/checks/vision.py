"""Checks of stages whose data has images, and of vision models."""

from importlib.util import find_spec
from pathlib import Path

from trinity.config.plan.arithmetic import model_keys
from trinity.config.plan.model import local_model_directory
from trinity.config.plan.stage_plan import StagePlan
from trinity.data.conversations import FAMILIES
from trinity.errors import UserError

PROCESSOR = "preprocessor_config.json"
LEAVE_OUT = "or leave `format.image_key` and `enable_multimodal` out"


def has_images(stage: StagePlan) -> bool:
    """Returns True if images are read with one of the stage's tasksets or its training data."""
    formats = [taskset.format for taskset in (*stage.tasksets, *stage.eval_tasksets)]
    formats += [own.format for own in (stage.experience_buffer, stage.expert_buffer) if own]
    asked = stage.needs_rollout and stage.config.explorer.rollout_model.enable_multimodal
    return asked or any(form.image_key is not None for form in formats)


def check_vision(stage: StagePlan, *, runs_here: bool = True) -> None:
    """Raises UserError for images that the stage's model cannot be asked about or trained on."""
    shows_images = has_images(stage)
    if stage.external_model is not None:
        if shows_images:
            raise UserError(
                "images are shown to engines of an explorer, not to a model at an address "
                f"(`external_model`): give `model.model_path`, {LEAVE_OUT}"
            )
        return
    directory = _model_directory(stage)
    keys = None if directory is None else model_keys(directory, {})
    if directory is None or keys is None:
        return
    kind = str(keys.get("model_type"))
    if kind not in FAMILIES:
        _check_text_model(stage, kind, shows_images=shows_images)
        return
    if runs_here and find_spec("torchvision") is None:
        raise UserError(
            f"the model {directory} reads images, for which torchvision is missing: run "
            "`trinity setup cpu` or `trinity setup gpu`"
        )
    if not (directory / PROCESSOR).is_file():
        raise UserError(
            f"the model {directory} reads images and has no {PROCESSOR}: add the model's own"
        )
    if stage.needs_training:
        _check_training(stage, kind)


def _model_directory(stage: StagePlan) -> Path | None:
    """Returns None for a model that is not here, of which the check of models speaks."""
    try:
        return local_model_directory(stage.model_path)
    except UserError:
        return None


def _check_text_model(stage: StagePlan, kind: str, *, shows_images: bool) -> None:
    if shows_images:
        raise UserError(
            f"`model.model_path: {stage.model_path}` is of type `{kind}`, and images are read "
            f"with models of the types {', '.join(FAMILIES)}: choose one of them, {LEAVE_OUT}"
        )
    if stage.config.trainer.freeze_vision_tower:
        raise UserError(
            f"`trainer.freeze_vision_tower: true` and `{stage.model_path}`, of type `{kind}`, has "
            "no vision tower: leave the key out"
        )


def _check_training(stage: StagePlan, kind: str) -> None:
    trainer, algorithm = stage.config.trainer, stage.config.algorithm
    size = stage.sequence_parallel_size
    refused = {
        f"`trainer.ulysses_sequence_parallel_size: {size}`": (
            size > 1,
            "ranks cannot share sequences with images: give 1",
        ),
        "`trainer.use_prefix_grouper: true`": (
            trainer.use_prefix_grouper is True,
            "prompts with images are computed for each row: leave the key out",
        ),
        f"`algorithm.algorithm_type: {algorithm.algorithm_type}`": (
            stage.needs_critic,
            "a critic cannot read images yet: choose an algorithm without one, such as grpo",
        ),
        "`algorithm.distillation.model_path`": (
            stage.teacher_model_path is not None,
            "a teacher in the trainer is not shown images: leave it out",
        ),
        "`algorithm.enable_router_replay: true`": (
            algorithm.enable_router_replay,
            "these models have no experts: leave it out",
        ),
    }
    for setting, (is_asked, reason) in refused.items():
        if is_asked:
            raise UserError(f"{setting} and a vision model (`{kind}`): {reason}")
