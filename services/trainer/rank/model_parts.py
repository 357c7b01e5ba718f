"""The parts of a rank that import a model's libraries; tests train without them."""

from collections.abc import Callable
from dataclasses import dataclass

from services.trainer.batch_rows import RowFormatter
from services.trainer.types import StageLearner


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """The factories that a rank is started with."""

    make_deterministic: Callable[[int], None]
    """Takes the number of threads."""
    make_learner: Callable[..., StageLearner]
    load_formatter: Callable[..., RowFormatter]


def load_model_parts() -> ModelParts:
    """Imports transformers and verl, which takes seconds."""
    from transformers.utils.logging import disable_progress_bar

    from services.trainer.data.encoders import load_formatter
    from services.trainer.learner.learner import Learner, make_deterministic

    disable_progress_bar()
    return ModelParts(
        make_deterministic=make_deterministic, make_learner=Learner, load_formatter=load_formatter
    )
