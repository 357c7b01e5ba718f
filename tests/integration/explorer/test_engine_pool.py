"""Two vLLM engines in one explorer."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import pytest_asyncio

from services.explorer.engine.interface import EngineDied, EnginePool
from services.explorer.engine.vllm import start_vllm
from tests.integration.explorer.conftest import SharedEngines, engine_options
from tests.integration.explorer.test_engine import PROMPT, sampling

DIED_SECONDS = 60.0

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.thorough]


OWN: set[BaseProcess] = set()
"""Processes of the engine that these tests may kill."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pool(engines: SharedEngines, models: tuple[Path, Path]) -> AsyncIterator[EnginePool]:
    """The one that others use as well, and one of its own."""
    first = await engines.get()
    before = set(multiprocessing.active_children())
    second = await start_vllm(replace(engine_options(models[0], "float32"), number=1))
    OWN.update(set(multiprocessing.active_children()) - before)
    try:
        yield EnginePool([first, second])
    finally:
        await second.close()


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
    for process in OWN:
        process.kill()
    with pytest.raises(EngineDied):
        async with asyncio.timeout(DIED_SECONDS):
            while True:
                await pool.check()
                await asyncio.sleep(0.1)
