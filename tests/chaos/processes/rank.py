"""A rank without a model, with its points: python -m tests.chaos.processes.rank"""

import logging
import os

from services.trainer.rank import __main__
from tests.chaos.journals import keep_batches
from tests.chaos.processes import prepare
from tests.support.model_free.rank import model_free_parts

if __name__ == "__main__":
    keep_batches(prepare("rank"))
    code = __main__.main(model_free_parts)
    logging.shutdown()
    os._exit(code)
