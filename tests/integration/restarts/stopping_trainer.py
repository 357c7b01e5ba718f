"""A trainer service that never gets through its first checkpoint, with ranks without a model.

python -m tests.integration.restarts.stopping_trainer
"""

import sys

from services.trainer import __main__ as service
from tests.support.model_free import trainer

if __name__ == "__main__":
    trainer.RANK_COMMAND = (sys.executable, "-m", "tests.integration.restarts.stopping_rank")
    service._starter = trainer._starter
    sys.exit(service.main())
