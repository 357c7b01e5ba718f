"""What runs have recorded, as trinity/config/docs/readers.json has it.

export TRINITY_TEST_CONFIG_READS=DIR PYTHONPATH=tests/config_reads/hook:.
pytest tests/e2e tests/model_free tests/integration/explorer
python -m tests.config_reads DIR > trinity/config/docs/readers.json
"""

import json
import sys
from pathlib import Path

from tests.config_reads.recorded import ON_GPUS, recorded

json.dump({**ON_GPUS, **recorded(Path(sys.argv[1]))}, sys.stdout, indent=1, sort_keys=True)
