"""A rank whose disk damages weights after they are written: each version in another way.

`python -m tests.support.model_free.damaged_rank`; FAULTS_VARIABLE holds the name of each version's
fault, as JSON. Copies that are written in their place stay whole.
"""

import json
import logging
import os
from typing import Any

from services.trainer.checkpoints.damage import DamageWatch
from services.trainer.checkpoints.weights import WeightsStore
from services.trainer.rank import __main__
from services.trainer.types import WeightsOnDisk
from tests.support.model_free.damage import FAULTS
from tests.support.model_free.rank import model_free_parts

FAULTS_VARIABLE = "TRINITY_TEST_FAULTS"
DEAF_VARIABLE = "TRINITY_TEST_DEAF"
"""Set for a rank that follows no reports."""


def damage_versions() -> None:
    """Replaces the store's method by one whose files go bad."""
    faults: dict[str, str] = json.loads(os.environ[FAULTS_VARIABLE])
    seal = WeightsStore.seal_files

    def seal_badly(self: WeightsStore, *args: Any, **values: Any) -> WeightsOnDisk:
        written = seal(self, *args, **values)
        name = faults.get(str(written.version))
        if name is not None and not written.copy and written.incarnation == 1:
            FAULTS[name](written.path)
        return written

    WeightsStore.seal_files = seal_badly  # type: ignore[method-assign]
    if DEAF_VARIABLE in os.environ:
        DamageWatch.start = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005


if __name__ == "__main__":
    damage_versions()
    code = __main__.main(model_free_parts)
    logging.shutdown()
    os._exit(code)
