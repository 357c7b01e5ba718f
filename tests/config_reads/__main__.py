"""What runs have recorded, as trinity/config/readers.json has it.

python -m tests.config_reads DIR > trinity/config/readers.json
"""

import json
import sys
from pathlib import Path

from tests.config_reads.recorded import ON_GPUS, recorded

json.dump({**ON_GPUS, **recorded(Path(sys.argv[1]))}, sys.stdout, indent=1, sort_keys=True)
