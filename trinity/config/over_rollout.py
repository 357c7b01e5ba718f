"""How many of an explore step's tasks must end, and how many may be left behind."""

import math
from decimal import Decimal

from trinity.config.root import Config


def needed_tasks(config: Config) -> int:
    """Tasks of an explore step that must end: all of them, unless `over_rollout` says less."""
    # As it is written: of 10 tasks 0.7 leaves 3, which the binary fraction makes 4.
    share = 1 - Decimal(str(config.explorer.over_rollout.ratio))
    return math.ceil(share * config.buffer.batch_size)
