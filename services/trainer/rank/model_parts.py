"""The parts of a rank that import a model's libraries, and the directory a stage starts from.

Tests train without those libraries.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from services.trainer.batch_rows import BatchImages, ReadMedia, RowFormatter, RowReader
from services.trainer.types import StageLearner
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.model_code_policy import trusts_model_code
from trinity.config.plan.model import MODEL_FILE_PATTERNS
from trinity.config.plan.parts import ResolvedExperienceBuffer
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import StartCheckpoint
from trinity.config.schema.data import FormatConfig
from trinity.errors import ManifestError, RunFailed, UserError
from trinity.runtime.imports import collection_paused
from trinity.runtime.json_values import JsonObject
from trinity.runtime.life import UNWATCHED, LifeSigns
from trinity.runtime.retry import WaitReporter
from trinity.weights.manifest import verify

if TYPE_CHECKING:  # it imports torch
    from services.trainer.collectives import Ranks


class MakeLearner(Protocol):
    """Builds the learner of a stage; collective."""

    def __call__(
        self,
        *,
        plan: StagePlan,
        model_directory: Path,
        ranks: "Ranks",
        critic_directory: Path | None,
        teacher_directory: Path | None,
        start_checkpoint: StartCheckpoint | None,
        on_micro_batch: Callable[[], None],
    ) -> StageLearner: ...


class LoadFormatter(Protocol):
    """Loads the formatter of a stage's training data, from the directory of its model."""

    def __call__(
        self,
        model_directory: Path,
        /,
        *,
        name: str,
        schema: RowSchema,
        chat_template: str | None,
        row_format: FormatConfig,
        max_length: int,
        template_kwargs: JsonObject,
        trusts_code: bool,
        images: BatchImages | None,
    ) -> RowFormatter: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """The factories that a rank is started with."""

    make_deterministic: Callable[[int], None]
    """Takes the number of threads; it is called for each stage."""
    make_learner: MakeLearner
    load_formatter: LoadFormatter


def default_num_threads() -> int:
    """Returns a number that depends on the machine alone, as the order of sums depends on it."""
    configured = os.environ.get("OMP_NUM_THREADS")
    if configured:
        return int(configured)
    return max(1, (os.cpu_count() or 1) // int(os.environ["WORLD_SIZE"]))


def load_model_parts() -> ModelParts:
    """Imports transformers and verl, which takes seconds."""
    with collection_paused():
        from transformers.utils.logging import disable_progress_bar

        from services.trainer.data.encoders import load_formatter
        from services.trainer.learner.learner import Learner, make_deterministic

    disable_progress_bar()
    return ModelParts(
        make_deterministic=make_deterministic, make_learner=Learner, load_formatter=load_formatter
    )


def starting_directory(
    path: str,
    manifest_sha256: str,
    *,
    ranks: "Ranks",
    waits: WaitReporter,
    life: LifeSigns = UNWATCHED,
) -> Path:
    """Returns the local directory, verified by its manifest, or fetched from the hub. Collective.

    Raises: RunFailed when an earlier stage's weights are damaged, UserError when there is no model.
    """
    if ranks.is_first:
        if manifest_sha256:
            directory = _verify(Path(path), manifest_sha256, life)
        else:
            directory = Path(path) if Path(path).is_dir() else _download(path, waits)
        ranks.broadcast_bytes(str(directory).encode())
        return directory
    return Path(ranks.broadcast_bytes(b"").decode())


def _verify(directory: Path, manifest_sha256: str, life: LifeSigns) -> Path:
    try:
        verify(directory, bytes.fromhex(manifest_sha256), life=life)
    except ManifestError as error:
        raise RunFailed(f"the final weights of the previous stage are damaged: {error}") from error
    return directory


def _download(path: str, waits: WaitReporter) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    waits.set("model", waits_for="the model hub", reason=f"{path} is being fetched")
    try:
        return Path(snapshot_download(path, allow_patterns=list(MODEL_FILE_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"`model.model_path: {path}` is neither a directory nor a model on the hub: "
            f"{str(error).splitlines()[0]}"
        ) from error
    finally:
        waits.clear("model")


def row_reader(
    plan: StagePlan,
    model_directory: Path,
    parts: ModelParts,
    read_media: ReadMedia,
) -> RowReader:
    """Returns a reader; it formats training data by the model's tokenizer, rollouts are tokens.

    Raises: UserError when the tokenizer cannot be used.
    """
    data = _training_data(plan)
    images = BatchImages.of_model(model_directory, read_media)
    formatter = None
    if data is not None:
        formatter = parts.load_formatter(
            model_directory,
            name=data.name,
            schema=plan.algorithm.row_schema,
            chat_template=plan.chat_template,
            row_format=data.format,
            max_length=plan.max_model_len,
            template_kwargs=plan.config.model.template_kwargs,
            trusts_code=trusts_model_code(
                plan.config.model.trust_remote_code, str(model_directory)
            ),
            images=images,
        )
    return RowReader(
        formatter=formatter,
        mixed_with_rollouts=plan.has_rollouts,
        skips_bad_rows=data is not None and data.on_bad_row == "skip",
        mismatched_length=plan.max_model_len if plan.algorithm.row_schema == "kto" else None,
        replays_experts=plan.config.algorithm.enable_router_replay,
        images=images,
    )


def _training_data(plan: StagePlan) -> ResolvedExperienceBuffer | None:
    """Returns the buffer that holds training data; None where there are rollouts alone."""
    return plan.expert_buffer if plan.has_rollouts else plan.experience_buffer
