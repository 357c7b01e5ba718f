"""The explorer over an engine without a model, that tells experts as one with a mixture does.

python -m tests.support.model_free.mixture_explorer
"""

import asyncio
import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from services.explorer.engine.interface import EngineOptions
from services.explorer.settings import ExplorerSettings
from tests.support.model_free import engine, explorer
from tests.support.model_free.engine import HashEngine
from trinity.runtime.rpc.runner import run_service
from trinity.types import SamplingParams
from trinity.workflows.generation import Generation, OnDelta

NUM_LAYERS, NUM_EXPERTS, NUM_CHOSEN = 3, 5, 2
"""Of the tests' tiny mixture."""


class MixtureEngine(HashEngine):
    """Its tokens, and the experts of each, are a hash; the weights' files stand for the weights."""

    def __init__(self, options: EngineOptions) -> None:
        self._records = options.records_experts
        super().__init__(options)

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Tokens, with the experts of each layer that drew them."""
        found = await super().generate(
            prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
        )
        if not self._records:
            return found
        seed = hashlib.sha256(f"{prompt_token_ids}{found.token_ids}".encode()).digest()
        draws = np.random.default_rng(list(seed))
        shape = (len(found.token_ids), NUM_LAYERS, NUM_EXPERTS)
        chosen = draws.random(shape).argsort(-1)[..., :NUM_CHOSEN] + 1
        return replace(found, routed_experts=chosen.astype(np.uint8))

    async def load_weights(self, directory: Path) -> None:
        """Take the hash of published weights."""
        self._digest = digest_of(directory)


def digest_of(directory: Path) -> bytes:
    """The hash of all weights in a directory."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.digest()


async def start_mixture_engine(options: EngineOptions) -> MixtureEngine:
    """A `StartEngine`."""
    return MixtureEngine(options)


async def serve_until(settings: ExplorerSettings, stop: asyncio.Event) -> None:
    """Explore until `stop` is set."""
    with (
        patch.object(engine, "read_digest", digest_of),
        patch.object(explorer, "start_hash_engine", start_mixture_engine),
    ):
        await explorer.serve_until(settings, stop)


if __name__ == "__main__":
    sys.exit(run_service("explorer", ExplorerSettings, serve_until))
