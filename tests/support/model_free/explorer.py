"""The explorer over an engine without a model: python -m tests.support.model_free.explorer"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from services.explorer import engines
from services.explorer.control.explorer import Explorer
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.engine.images import ChatImages, ImageStore
from services.explorer.serving import pool
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import route_runs
from tests.support.model_free.engine import CharacterTokenizer, start_hash_engine
from trinity.runtime.logs import log_formatter
from trinity.runtime.rpc.runner import run_service
from trinity.workflows.generation import Prompt


class _StoredImages(ChatImages):
    """Images of clients, which are stored and not shown."""

    @classmethod
    def of(cls, tokenizer: object, store: ImageStore) -> ChatImages:
        """For any tokenizer."""
        return cls(cast(Any, tokenizer), cast(Any, None), store)

    async def loaded(self, messages: Sequence[Any]) -> list[Any]:
        """The chat with hashes."""
        return await self._store.resolve(messages)

    async def shown(self, prompt: Prompt) -> list[int]:
        """The tokens alone."""
        return prompt.token_ids


async def serve_until(settings: ExplorerSettings, stop: asyncio.Event) -> None:
    """Explore until `stop` is set."""
    route_runs(Path(settings.run_log_dir), log_formatter("explorer", settings.log_format))
    engines._load_tokenizer = lambda _: CharacterTokenizer()  # type: ignore[assignment,return-value]
    pool.ChatImages = _StoredImages  # type: ignore[attr-defined]
    explorer = Explorer(
        settings=settings,
        start_engine=start_hash_engine,
        broker=NatsBroker(settings.nats_url.get_secret_value()),
    )
    await explorer.run_until(stop)


if __name__ == "__main__":
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))
