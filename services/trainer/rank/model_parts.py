"""The parts of a rank that import a model's libraries; tests train without them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from services.trainer.batch_rows import RowFormatter
from services.trainer.types import StageLearner
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import StartCheckpoint
from trinity.config.schema.data import FormatConfig
from trinity.json_values import JsonObject
from trinity.runtime.imports import collection_paused

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
