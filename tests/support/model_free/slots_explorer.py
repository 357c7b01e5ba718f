"""The explorer over an engine of many slots: python -m tests.support.model_free.slots_explorer"""

import sys

from services.explorer.settings import ExplorerSettings
from tests.support.model_free import explorer
from tests.support.model_free.slots import start_slot_engine
from trinity.runtime.rpc.runner import run_service

if __name__ == "__main__":
    explorer.start_hash_engine = start_slot_engine  # type: ignore[assignment,attr-defined]
    sys.exit(run_service("explorer", ExplorerSettings, explorer.serve_until))
