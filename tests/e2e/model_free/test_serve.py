"""Mode serve over real services: the newest weights of a run answer, and newer ones follow."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from pydantic import JsonValue

from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.launch.modes import serve_plan
from trinity.run.launch.run import LocalRun, RunInterrupted
from trinity.run.progress.reporter import make_reporter

pytestmark = pytest.mark.timeout(600)

SECONDS = 300
KEY = "a key"
QUIET: JsonValue = {"monitor_type": "none"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def trained(root: Path) -> ExperimentPlan:
    return experiment_plan(root, monitor=QUIET)


def served(root: Path, port: int) -> ExperimentPlan:
    """The same run's name, in mode serve."""
    plan = experiment_plan(
        root,
        mode="serve",
        stages=[],
        algorithm={"algorithm_type": "grpo"},
        explorer={
            "proxy_port": port,
            "service_status_check_interval": 1,
            "rollout_model": {"api_key": KEY, "engine_num": 2},
        },
        monitor=QUIET,
    )
    return serve_plan(plan)


def run_of(plan: ExperimentPlan) -> LocalRun:
    return LocalRun(plan=plan, reporter=make_reporter(plan.label), services=model_free_services())


@contextlib.asynccontextmanager
async def serving(plan: ExperimentPlan, port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client, once somebody answers."""
    running = asyncio.ensure_future(run_of(plan).run_to_end())
    address = f"http://127.0.0.1:{port}/v1"
    async with openai.AsyncOpenAI(base_url=address, api_key=KEY, max_retries=0) as client:
        try:
            async with asyncio.timeout(SECONDS):
                while not await answers(client):
                    assert not running.done(), running.result()
            yield client
        finally:
            running.cancel()
            with pytest.raises(RunInterrupted):
                await running


async def answers(client: openai.AsyncOpenAI) -> bool:
    try:
        await client.models.list()
    except openai.APIConnectionError:
        await asyncio.sleep(0.1)
        return False
    return True


async def said(client: openai.AsyncOpenAI) -> tuple[str, str]:
    """What is answered to one question with one seed, and by which weights."""
    answer = await client.chat.completions.create(
        model=(await client.models.list()).data[0].id,
        messages=[{"role": "user", "content": "1+1="}],
        seed=3,
    )
    return answer.choices[0].message.content or "", answer.system_fingerprint or ""


async def test_what_is_trained_is_served_with_the_newest_weights(tmp_path: Path) -> None:
    port = free_port()
    async with serving(served(tmp_path, port), port) as client:
        before = await said(client)
        assert await said(client) == before
        await run_of(trained(tmp_path)).run_to_end()
        async with asyncio.timeout(SECONDS):
            while (after := await said(client))[1] != "v8-1":  # a question is pause enough
                pass
    assert after[0] != before[0]
    async with serving(served(tmp_path, port), port) as again:
        assert await said(again) == after
