"""The synchronizer with its points: python -m tests.chaos.processes.synchronizer"""

import sys

from services.synchronizer.__main__ import main
from tests.chaos.processes import prepare

if __name__ == "__main__":
    prepare("synchronizer")
    sys.exit(main())
