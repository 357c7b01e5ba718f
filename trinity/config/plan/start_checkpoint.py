"""Finds and checks the checkpoint of a former run that a stage begins with.

step-<N>-<incarnation>       of a Trinity run: state.json and shards/, the same below critic/
global_step_<N>              of verl: actor/ and critic/, each model_world_size_<n>_rank_<i>.pt
a model's directory          in Hugging Face's layout, such as a published version: weights alone
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from trinity.config.plan.arithmetic import model_keys_of
from trinity.config.plan.model import local_model_directory
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.task_storage import absolute
from trinity.config.schema.experiment import MergedStage
from trinity.config.schema.trainer import TrainerConfig
from trinity.errors import ManifestError, UserError
from trinity.weights.layout import (
    LAYOUT,
    MODEL_CONFIG,
    RANK_PART,
    STATE_NAME,
    is_sharded,
    num_ranks_of,
    rank_part,
)
from trinity.weights.manifest import MANIFEST_NAME, verify

KEY = "trainer.resume_from_path"
_SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
"""Keys of a config.json that weights depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCheckpoint:
    """The places of a checkpoint's parts."""

    policy: Path
    critic: Path | None
    root: Path
    num_ranks: int | None = None
    """Ranks that alone can load it; None where any number can."""
    is_whole: bool = False
    """True for whole weights in Hugging Face's layout, without an optimizer's state."""


def configured_checkpoint(stage: MergedStage, above: TrainerConfig) -> str | None:
    """Returns the path of the checkpoint with which the first stage begins, if the file names one.

    Raises: UserError if the keys contradict each other.
    """
    trainer = stage.config.trainer
    mode, path = trainer.resume_mode, trainer.resume_from_path
    if (mode, path) != (above.resume_mode, above.resume_from_path):
        raise UserError(
            f"stage `{stage.name}`: `trainer.resume_mode` and `resume_from_path` say where the run "
            "begins: write them at the top of the file, not in a stage"
        )
    if mode == "resume_path" and not path:
        raise UserError(
            "`trainer.resume_mode: resume_path` needs `trainer.resume_from_path`: "
            "give the folder of a checkpoint"
        )
    if mode != "resume_path" and path:
        raise UserError(
            f"`trainer.resume_from_path: {path}` is read with `trainer.resume_mode: resume_path` "
            "alone: write that too, or remove the path"
        )
    return absolute(path) if path and stage.index == 0 else None


def find_start_checkpoint(path: str) -> StartCheckpoint:
    """Finds the parts of a checkpoint by the names in its folder, without reading files.

    Raises: UserError if there is no checkpoint.
    """
    root = Path(path)
    if not root.is_dir():
        raise UserError(f"`{KEY}: {path}` is not a directory: give the folder of a checkpoint")
    for policy in (root, root / "actor"):
        ranks = num_ranks_of(policy)
        if is_sharded(policy) or ranks is not None:
            critic = root / "critic"
            has_critic = is_sharded(critic) or num_ranks_of(critic) is not None
            return StartCheckpoint(
                policy=policy, critic=critic if has_critic else None, num_ranks=ranks, root=root
            )
    if (root / "config.json").is_file() and any(root.glob("*.safetensors")):
        return StartCheckpoint(policy=root, critic=None, root=root, is_whole=True)
    raise UserError(f"`{KEY}: {path}` holds no checkpoint{_advice(root)}")


def has_optimizer(found: StartCheckpoint) -> bool:
    """Returns False if the policy's optimizer was not saved; other checks find a damaged state."""
    if found.is_whole:
        return False
    if found.num_ranks is not None:
        parts = (f"optim_{rank_part(found.num_ranks, rank)}" for rank in range(found.num_ranks))
        return all((found.policy / part).is_file() for part in parts)
    try:
        state = json.loads((found.policy / STATE_NAME).read_bytes())
        return "optimizer" in state["contents"]
    except (OSError, ValueError, KeyError, TypeError):
        return True


def check_start_checkpoint(plan: StagePlan) -> None:
    """Checks that the stage can begin with the checkpoint that it names.

    Raises: UserError if it is incomplete, or of another model or number of ranks.
    """
    if plan.start_checkpoint is None:
        return
    found = find_start_checkpoint(plan.start_checkpoint)
    if found.is_whole:
        _check_shape(found.policy, plan)
        return
    if is_sharded(found.policy):
        _check_layout(found.policy)
    if (found.policy / MODEL_CONFIG / "config.json").is_file():
        _check_shape(found.policy / MODEL_CONFIG, plan, is_saved=True)
    if found.num_ranks not in (None, plan.trainer_rank_num):
        raise UserError(
            f"`{KEY}: {found.root}` was written by {_in_words(found.num_ranks or 0)}, and stage "
            f"`{plan.name}` trains on {plan.trainer_rank_num}: set `trainer.rank_num: "
            f"{found.num_ranks}`, or give weights that the run published"
        )


def verify_start_checkpoint(found: StartCheckpoint) -> None:
    """Verifies the files against the checkpoint's manifest, if it has one.

    Raises: UserError naming the first damaged file.
    """
    manifest = found.root / MANIFEST_NAME
    if not manifest.is_file():
        return
    try:
        verify(found.root, hashlib.sha256(manifest.read_bytes()).digest())
    except ManifestError as error:
        raise UserError(f"`{KEY}` names a checkpoint that is damaged: {error}") from error


def _advice(root: Path) -> str:
    below = [file for file in root.glob("**/*.pt") if RANK_PART.fullmatch(file.name)]
    below += root.glob(f"**/{STATE_NAME}")
    if below:
        newest = max(below, key=lambda file: file.stat().st_mtime).parent
        folder = newest.parent if newest.name in ("actor", "critic") else newest
        if folder != root:
            return f": did you mean {folder}?"
        return ": parts of it are missing, give one that is whole"
    return (
        ": give a folder `step-<N>-<incarnation>` of a run's checkpoints, one `global_step_<N>` "
        "of verl's, or a model in Hugging Face's layout"
    )


def _check_layout(directory: Path) -> None:
    file = directory / STATE_NAME
    try:
        layout = json.loads(file.read_bytes())["layout"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"`{KEY}` names a checkpoint that is damaged: {file} cannot be read"
        ) from error
    if layout != LAYOUT:
        raise UserError(
            f"`{KEY}: {directory}` has layout {layout}, and this release reads {LAYOUT}: it was "
            "written by a later one, install that"
        )


def _check_shape(directory: Path, plan: StagePlan, *, is_saved: bool = False) -> None:
    """Compares configurations; one `is_saved` by transformers has all keys, the user's as well."""
    model = local_model_directory(plan.model_path)
    if model is None:
        return
    own, wanted = _config_of(directory), _config_of(model)
    if is_saved:
        wanted |= model_keys_of(plan.config.trainer.override_config)
    for key in _SHAPE:
        if is_saved and not (key in own and key in wanted):
            continue
        if own.get(key) != wanted.get(key):
            raise UserError(
                f"`{KEY}: {directory}` holds another model than `model.model_path`: "
                f"`{key}` is {own.get(key)} there and {wanted.get(key)} in {model}"
            )


def _config_of(directory: Path) -> dict[str, object]:
    file = directory / "config.json"
    try:
        found: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read ({error}): save the model again") from error
    return found


def _in_words(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"
