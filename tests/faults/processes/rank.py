"""A rank without a model, with its points: python -m tests.faults.processes.rank"""

import logging
import os

from tests.model_free.rank import _without_heavy_modules

if __name__ == "__main__":
    _without_heavy_modules()
    from services.trainer import rank
    from tests.faults.journals import keep_batches
    from tests.faults.processes import prepare

    keep_batches(prepare("rank"))
    code = rank.main()
    logging.shutdown()
    os._exit(code)
