"""The explorer without a model, with its points: python -m tests.chaos.processes.explorer"""

import sys

from services.explorer.settings import ExplorerSettings
from tests.chaos.journals import keep_loads, keep_told
from tests.chaos.processes import prepare
from tests.support.model_free.explorer import serve_until
from trinity.runtime.rpc.runner import run_service

if __name__ == "__main__":
    folder = prepare("explorer")
    keep_told(folder)
    keep_loads(folder)
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))
