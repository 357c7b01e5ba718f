"""The explorer over an engine that can die: python -m tests.integration.stalls.explorer"""

import sys

from services.explorer.settings import ExplorerSettings
from tests.integration.stalls.faults import start_mortal_engine
from tests.support.model_free import explorer
from trinity.runtime.rpc.runner import run_service

if __name__ == "__main__":
    explorer.start_hash_engine = start_mortal_engine  # type: ignore[attr-defined]
    sys.exit(run_service("explorer", ExplorerSettings, explorer.serve_until))
