"""A model behind an address of its own."""

from collections.abc import AsyncIterator

import pytest

from services.explorer.openai_api.server import AttemptApiServer
from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer
from tests.unit.explorer.offering import ROLLOUT, Offered
from tests.unit.explorer.session_run import Run, Shelf
from trinity.types import SamplingParams
from trinity.workflows.generation import ModelLimits
from trinity.workflows.model import ModelWrapper


@pytest.fixture
async def api() -> AsyncIterator[AttemptApiServer]:
    api = AttemptApiServer(model_path="/models/m", rollout=ROLLOUT, tokenizer=CharacterTokenizer())
    await api.start_api()
    try:
        yield api
    finally:
        await api.stop_api()


@pytest.fixture
async def offered(api: AttemptApiServer) -> Offered:
    engine = ArithmeticEngine()
    model = ModelWrapper(
        generator=engine,
        tokenizer=CharacterTokenizer(),
        limits=ModelLimits(max_model_len=200, max_prompt_tokens=120),
        sampling=SamplingParams(max_tokens=8),
        weights=(4, 1),
        seed_of_call=lambda call: 100 + call,
        keeps_history=True,
    )
    model.enable_api(api.register_attempt(model))
    return Offered(model, engine)


@pytest.fixture
def run(api: AttemptApiServer) -> Run:
    return Run(api, Shelf())
