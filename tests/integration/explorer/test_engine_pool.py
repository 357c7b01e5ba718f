"""Two vLLM engines in one explorer."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from services.explorer.engine.interface import EngineDied, EngineOptions
from services.explorer.engine.pool import EnginePool
from services.explorer.engine.vllm import start_vllm
from tests.integration.explorer.test_engine import END, MAX_MODEL_LEN, PROMPT, sampling
from trinity.config.schema.explorer import RolloutModelConfig

DIED_SECONDS = 60.0

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.thorough]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(models: tuple[Path, Path]) -> AsyncIterator[EnginePool]:
    """Each with a process of its own."""
    options = EngineOptions(
        model_path=str(models[0]),
        max_model_len=MAX_MODEL_LEN,
        end_token_ids=(END,),
        rollout=RolloutModelConfig(dtype="float32", engine_num=2),
    )
    pool = EnginePool([await start_vllm(replace(options, number=i)) for i in range(2)])
    try:
        yield pool
    finally:
        await pool.close()


async def test_two_engines_answer_alike_before_and_after_new_weights(
    pool: EnginePool, models: tuple[Path, Path]
) -> None:
    assert len(multiprocessing.active_children()) >= 2
    first, second = await asyncio.gather(*(pool.generate(PROMPT, sampling()) for _ in range(2)))
    assert first == second
    await pool.load_weights(models[1])
    third, fourth = await asyncio.gather(*(pool.generate(PROMPT, sampling()) for _ in range(2)))
    assert third == fourth
    assert third != first
    await pool.check()


async def test_an_engine_whose_process_is_killed_ends_them_all(pool: EnginePool) -> None:
    """The last test here: nothing is left to generate with."""
    multiprocessing.active_children()[0].kill()
    with pytest.raises(EngineDied):
        async with asyncio.timeout(DIED_SECONDS):
            while True:
                await pool.check()
                await asyncio.sleep(0.1)
