"""Number of an explore step's tasks that must end; the others may be left behind."""

import math
from decimal import Decimal

from trinity.config.root import Config


def needed_tasks(config: Config) -> int:
    """Tasks of an explore step that must end: all of them, unless `over_rollout` says less."""
    # Decimal as written: of 10 tasks 0.7 leaves 3; the binary fraction would make it 4.
    share = 1 - Decimal(str(config.explorer.over_rollout.ratio))
    return math.ceil(share * config.buffer.batch_size)
