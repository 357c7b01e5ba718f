"""The buffer with its points: python -m tests.chaos.processes.buffer"""

import sys

from services.buffer import maintenance
from services.buffer.__main__ import main
from tests.chaos.processes import prepare

UPKEEP_SECONDS = 0.3
"""Between looks for what is old: an experiment takes less than the usual minutes."""

if __name__ == "__main__":
    prepare("buffer")
    maintenance.PAUSE_SECONDS = maintenance.FEEDBACK_SECONDS = UPKEEP_SECONDS
    sys.exit(main())
