"""The synchronizer with its points: python -m tests.faults.processes.synchronizer"""

import sys

from services.synchronizer.__main__ import main
from tests.faults.processes import prepare

if __name__ == "__main__":
    prepare("synchronizer")
    sys.exit(main())
