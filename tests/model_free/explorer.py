"""The explorer service over an engine without a model: python -m tests.model_free.explorer"""

import asyncio
import sys

from services.explorer import engines
from services.explorer.control.explorer import Explorer
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.settings import ExplorerSettings
from tests.model_free.engine import CharacterTokenizer, start_hash_engine
from trinity.rpc.runner import run_service


async def serve_until(settings: ExplorerSettings, stop: asyncio.Event) -> None:
    """Explore until `stop` is set."""
    engines._load_tokenizer = lambda _: CharacterTokenizer()  # type: ignore[assignment,return-value]
    explorer = Explorer(
        settings=settings,
        start_engine=start_hash_engine,
        broker=NatsBroker(settings.nats_url.get_secret_value()),
    )
    await explorer.run_until(stop)


if __name__ == "__main__":
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))
