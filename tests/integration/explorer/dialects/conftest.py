"""A model with an address, asked in every dialect."""

from collections.abc import AsyncIterator

import anthropic
import httpx
import pytest

from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.openai_api.tools import load_parsers
from tests.integration.explorer.dialects.asking import Asked, Chats, Scripted
from tests.unit.explorer.offering import ROLLOUT, Offered
from trinity.types import SamplingParams
from trinity.workflows.generation import ModelLimits
from trinity.workflows.model import ModelWrapper


@pytest.fixture
async def asked(request: pytest.FixtureRequest) -> AsyncIterator[Asked]:
    chats, engine = Chats(), Scripted()
    keys = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    thinks = getattr(request, "param", None)
    rollout = ROLLOUT.model_copy(update={**keys, "reasoning_parser": thinks})
    api = AttemptApiServer(
        model_path="m", rollout=rollout, tokenizer=chats, parsers=load_parsers(rollout, chats)
    )
    await api.start_api()
    model = ModelWrapper(
        generator=engine,
        tokenizer=chats,
        limits=ModelLimits(max_model_len=400_000, max_prompt_tokens=300_000),
        sampling=SamplingParams(max_tokens=2000),
        weights=(4, 1),
        seed_of_call=lambda call: 100 + call,
        keeps_history=True,
    )
    access = api.register_attempt(model)
    model.enable_api(access)
    root = access.address.removesuffix("/v1")
    try:
        async with (
            Offered(model, engine).client as client,
            anthropic.AsyncAnthropic(base_url=root, api_key=access.key, max_retries=0) as other,
            httpx.AsyncClient(base_url=root, headers={"x-api-key": access.key}) as http,
        ):
            yield Asked(
                model=model, engine=engine, chats=chats, messages=other, openai=client, http=http
            )
    finally:
        await api.stop_api()
