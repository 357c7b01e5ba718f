"""The explorer without a model, with its points: python -m tests.faults.processes.explorer"""

import sys

from services.explorer.settings import ExplorerSettings
from tests.faults.journals import keep_loads, keep_told
from tests.faults.processes import prepare
from tests.model_free.explorer import serve_until
from trinity.rpc.runner import run_service

if __name__ == "__main__":
    folder = prepare("explorer")
    keep_told(folder)
    keep_loads(folder)
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))
