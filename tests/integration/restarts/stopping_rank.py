"""A rank that stops in the middle of writing a checkpoint, for ever: see `stopping_trainer`."""

import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

from services.trainer.rank import __main__
from services.trainer.rank.model_parts import ModelParts
from tests.support.model_free import learner
from tests.support.model_free.rank import model_free_parts

HALF = '{"step": 3, "dig'


class HalfSavingLearner(learner.Learner):
    """Writes half of its state."""

    def save(self, directory: Path, step: int) -> None:
        """Never returns."""
        del step
        (directory / learner.STATE_FILE).write_text(HALF)
        while True:
            signal.pause()


def parts() -> ModelParts:
    """The model-free ones with this learner."""
    return replace(model_free_parts(), make_learner=HalfSavingLearner)


if __name__ == "__main__":
    code = __main__.main(parts)
    logging.shutdown()
    os._exit(code)
