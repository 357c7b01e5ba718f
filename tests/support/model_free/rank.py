"""A rank of the trainer whose learner has no model: python -m tests.support.model_free.rank"""

import logging
import os
from pathlib import Path
from typing import Any, cast

from services.trainer.batch_rows import BatchImages, ReadMedia
from services.trainer.rank import __main__, model_parts
from services.trainer.rank.model_parts import ModelParts
from tests.support.model_free.formatter import load_formatter
from tests.support.model_free.learner import Learner, make_deterministic
from trinity.types import IntArray


class _ImagesAsFiles(BatchImages):
    """Images without a processor: a learner takes in their files."""

    @classmethod
    def of_model(cls, directory: Path, read: ReadMedia) -> BatchImages:
        """For any model."""
        del directory
        return cls(cast(Any, None), read)

    def count_tokens(self, tokens_L: IntArray) -> int:
        """They have none."""
        del tokens_L
        return 0


def model_free_parts() -> ModelParts:
    """Imports nothing that a model needs: a rank is back within a second or two."""
    model_parts.BatchImages = _ImagesAsFiles  # type: ignore[attr-defined]
    return ModelParts(
        make_deterministic=make_deterministic, make_learner=Learner, load_formatter=load_formatter
    )


if __name__ == "__main__":
    code = __main__.main(model_free_parts)
    logging.shutdown()
    os._exit(code)
