"""Prints what runs have recorded, as trinity/config/docs/readers.json has it.

export TRINITY_TEST_CONFIG_READS=DIR PYTHONPATH=tests/support/config_reads/hook:.
pytest --ignore tests/e2e/images tests/e2e tests/chaos tests/integration/explorer
python -m tests.support.config_reads DIR > trinity/config/docs/readers.json
"""

import json
import sys
from pathlib import Path

from tests.support.config_reads.recorded import ON_GPUS, recorded

json.dump({**ON_GPUS, **recorded(Path(sys.argv[1]))}, sys.stdout, indent=1, sort_keys=True)
