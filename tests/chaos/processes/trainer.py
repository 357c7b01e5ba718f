"""The trainer service, whose ranks have points: python -m tests.chaos.processes.trainer"""

import sys

from services.trainer import __main__ as trainer
from tests.support.model_free import trainer as model_free

if __name__ == "__main__":
    model_free.RANK_COMMAND = (sys.executable, "-m", "tests.chaos.processes.rank")
    trainer._starter, trainer._part_starter = model_free._starter, model_free._part_starter
    sys.exit(trainer.main())
