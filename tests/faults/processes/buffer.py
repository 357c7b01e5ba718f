"""The buffer with its points: python -m tests.faults.processes.buffer"""

import sys

from services.buffer.__main__ import main
from tests.faults.processes import prepare

if __name__ == "__main__":
    prepare("buffer")
    sys.exit(main())
