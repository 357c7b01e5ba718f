"""A rank of the trainer whose learner has no model: python -m tests.model_free.rank"""

import logging
import os
import sys
from types import ModuleType


def _without_heavy_modules() -> None:
    """What a model needs is never imported: a rank is back within a second or two."""
    quiet = ModuleType("transformers.utils.logging")
    quiet.__dict__.update(disable_progress_bar=lambda: None)
    sys.modules["transformers"] = ModuleType("transformers")
    sys.modules["transformers.utils"] = ModuleType("transformers.utils")
    sys.modules["transformers.utils.logging"] = quiet
    from tests.model_free import formatter, learner

    sys.modules["services.trainer.formatter"] = formatter
    sys.modules["services.trainer.learner"] = learner


if __name__ == "__main__":
    _without_heavy_modules()
    from services.trainer import rank

    code = rank.main()
    logging.shutdown()
    os._exit(code)
