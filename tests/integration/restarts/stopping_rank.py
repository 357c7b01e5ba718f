"""A rank that stops in the middle of writing a checkpoint, for ever: see `stopping_trainer`."""

import logging
import os
import signal
from pathlib import Path

from tests.model_free import learner, rank

HALF = '{"step": 3, "dig'


class HalfSavingLearner(learner.Learner):
    """Writes half of its state."""

    def save(self, directory: Path, step: int) -> None:
        """Never returns."""
        del step
        (directory / learner.STATE_FILE).write_text(HALF)
        while True:
            signal.pause()


if __name__ == "__main__":
    rank._without_heavy_modules()
    learner.Learner = HalfSavingLearner  # type: ignore[misc]
    from services.trainer import rank as real

    code = real.main()
    logging.shutdown()
    os._exit(code)
