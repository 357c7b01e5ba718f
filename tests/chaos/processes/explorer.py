"""The explorer without a model, with its points: python -m tests.chaos.processes.explorer"""

import sys
from pathlib import Path

from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.settings import ExplorerSettings
from tests.chaos.journals import keep_loads, keep_samplings, keep_told
from tests.chaos.processes import prepare
from tests.support.model_free import explorer
from tests.support.model_free.engine import start_hash_engine
from tests.support.model_free.slots import SLOTS, start_slot_engine
from trinity.runtime.rpc.runner import run_service


async def start_engine(options: EngineOptions) -> Engine:
    """The one of many slots for a model in a folder of that name."""
    if Path(options.model_path).parent.name == SLOTS:
        return await start_slot_engine(options)
    return await start_hash_engine(options)


if __name__ == "__main__":
    folder = prepare("explorer")
    keep_told(folder)
    keep_loads(folder)
    keep_samplings(folder)
    explorer.start_hash_engine = start_engine  # type: ignore[assignment,attr-defined]
    sys.exit(run_service("explorer", ExplorerSettings, explorer.serve_until))
