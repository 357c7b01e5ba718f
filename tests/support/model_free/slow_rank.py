"""A rank whose disk takes long for one version: `python -m tests.support.model_free.slow_rank`

SLOW_SECONDS_VARIABLE says how long; with DEAF_DISK_VARIABLE, files have no time that they may take,
so that the rank gives no sign of life meanwhile.
"""

import logging
import os
import time
from typing import Any

from safetensors.torch import save_file

from services.trainer.checkpoints import dealt
from services.trainer.rank import __main__
from tests.support.model_free.rank import model_free_parts
from trinity.runtime.life import LifeSigns

SLOW_SECONDS_VARIABLE = "TRINITY_TEST_SLOW_SECONDS"
DEAF_DISK_VARIABLE = "TRINITY_TEST_DEAF_DISK"


def write_slowly() -> None:
    """Replaces what writes a version's tensors by what takes long for the third version."""
    seconds = float(os.environ[SLOW_SECONDS_VARIABLE])

    def save_slowly(tensors: Any, path: Any, **more: Any) -> None:
        if path.parent.name.startswith("v3-1."):
            time.sleep(seconds)
        save_file(tensors, path, **more)

    vars(dealt)["save_file"] = save_slowly
    if DEAF_DISK_VARIABLE not in os.environ:
        defaults = LifeSigns.__init__.__kwdefaults__
        assert defaults is not None
        defaults["bytes_per_second"] = 0.1


if __name__ == "__main__":
    write_slowly()
    code = __main__.main(model_free_parts)
    logging.shutdown()
    os._exit(code)
