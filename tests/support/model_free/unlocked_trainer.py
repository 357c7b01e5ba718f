"""A trainer whose rank ignores the lock: python -m tests.support.model_free.unlocked_trainer"""

import sys

from services.trainer import __main__ as trainer
from tests.support.model_free import trainer as model_free

if __name__ == "__main__":
    model_free.RANK_COMMAND = (sys.executable, "-m", "tests.support.model_free.unlocked_rank")
    trainer._starter = model_free._starter
    sys.exit(trainer.main())
