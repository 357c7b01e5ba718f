"""A rank of the trainer whose learner has no model: python -m tests.support.model_free.rank"""

import logging
import os

from services.trainer.rank import __main__
from services.trainer.rank.model_parts import ModelParts
from tests.support.model_free.formatter import load_formatter
from tests.support.model_free.learner import Learner, make_deterministic


def model_free_parts() -> ModelParts:
    """Imports nothing that a model needs: a rank is back within a second or two."""
    return ModelParts(
        make_deterministic=make_deterministic, make_learner=Learner, load_formatter=load_formatter
    )


if __name__ == "__main__":
    code = __main__.main(model_free_parts)
    logging.shutdown()
    os._exit(code)
