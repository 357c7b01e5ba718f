"""The explorer over an engine without a model: python -m tests.support.model_free.explorer"""

import asyncio
import sys
from pathlib import Path

from services.explorer import engines
from services.explorer.control.explorer import Explorer
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import route_runs
from tests.support.model_free.engine import CharacterTokenizer, start_hash_engine
from trinity.runtime.logs import log_formatter
from trinity.runtime.rpc.runner import run_service


async def serve_until(settings: ExplorerSettings, stop: asyncio.Event) -> None:
    """Explore until `stop` is set."""
    route_runs(Path(settings.run_log_dir), log_formatter("explorer", settings.log_format))
    engines._load_tokenizer = lambda _: CharacterTokenizer()  # type: ignore[assignment,return-value]
    explorer = Explorer(
        settings=settings,
        start_engine=start_hash_engine,
        broker=NatsBroker(settings.nats_url.get_secret_value()),
    )
    await explorer.run_until(stop)


if __name__ == "__main__":
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))
