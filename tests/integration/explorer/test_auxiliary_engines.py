"""The policy and a judge, each in a vLLM engine of its own, in one explorer."""

import asyncio
import multiprocessing
from collections.abc import AsyncIterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM
from vllm.v1.engine.exceptions import EngineDeadError

from services.explorer.engine.interface import Engine, EngineDied, EngineOptions
from services.explorer.engine.vllm import VllmEngine, start_vllm
from services.explorer.engines import EngineManager, LoadedStageModels
from services.explorer.types import WeightsId, WeightsVersion
from tests.integration.explorer.conftest import SharedEngines
from tests.integration.explorer.test_engine import PROMPT, sampling
from tests.unit.explorer.builders import build_plan
from trinity.config.schema.data import FormatConfig
from trinity.plugins import WORKFLOWS
from trinity.runtime.presence import WaitRegistry
from trinity.types import SamplingParams
from trinity.workflows.generation import ModelLimits
from trinity.workflows.model import ModelWrapper
from trinity.workflows.task import Task

DIED_SECONDS = 60.0

pytestmark = pytest.mark.asyncio(loop_scope="session")


CHILDREN: set[BaseProcess] = set()
"""Processes of the judge's engine."""


class Borrowed(VllmEngine):
    """An engine that others use after it."""

    async def close(self) -> None:
        """Nothing: whoever started it closes it."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(
    engines: SharedEngines, models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LoadedStageModels]:
    """Started as the explorer does, from a plan; the policy's engine is one that others use too."""
    shared = await engines.get()
    assert isinstance(shared, VllmEngine)

    async def start(options: EngineOptions) -> Engine:
        if not options.role.endswith("`judge`"):
            return Borrowed(shared._engine, options)
        before = set(multiprocessing.active_children())
        engine = await start_vllm(options)
        CHILDREN.update(set(multiprocessing.active_children()) - before)
        return engine

    plan = build_plan(
        tmp_path_factory.mktemp("plan"),
        model={"model_path": str(models[0]), "max_model_len": 96},
        explorer={
            "auxiliary_models": [
                {"name": "judge", "model_path": str(models[1]), "dtype": "float32"}
            ]
        },
    )
    manager = EngineManager(
        start=start, waits=WaitRegistry(owner="explorer", on_change=lambda: None)
    )
    try:
        yield await manager.ensure(plan.stages[0])
    finally:
        await manager.close_engines()


async def test_the_judge_answers_as_its_own_model_whatever_the_policy_learns(
    running: LoadedStageModels, models: tuple[Path, Path]
) -> None:
    [judge] = running.auxiliary
    own = await running.policy.engine.generate(PROMPT, sampling())
    said = await judge.engine.generate(PROMPT, sampling())
    assert own != said
    learnt = WeightsVersion(
        id=WeightsId(version=1, incarnation=1),
        path=models[1],
        manifest_sha256=b"",
        weights_sha256=b"other weights",
    )
    await running.loader.load_published(learnt)
    assert await running.policy.engine.generate(PROMPT, sampling()) == said, (
        "it has the judge's weights"
    )
    assert await judge.engine.generate(PROMPT, sampling()) == said, "which are as they were"


async def test_a_teacher_tells_how_likely_it_finds_what_the_policy_said(
    running: LoadedStageModels, models: tuple[Path, Path]
) -> None:
    [teacher] = running.auxiliary
    limits = ModelLimits(max_model_len=96, max_prompt_tokens=40)
    made = [
        ModelWrapper(
            generator=one.engine,
            tokenizer=one.tokenizer,
            limits=limits,
            sampling=SamplingParams(max_tokens=24),
            weights=(0, 0),
            seed_of_call=lambda call: 7 + call,
        )
        for one in (running.policy, teacher)
    ]
    task = Task(raw_task={"question": "1+1="}, format_args=FormatConfig(prompt_key="question"))
    kind = WORKFLOWS.get("on_policy_distill_workflow")
    [experience] = await kind(task=task, model=made[0], auxiliary_models=made[1:]).run_async()
    sequence = experience.sequence
    tokens, begin = sequence.tokens.tolist(), sequence.prompt_length
    weights = AutoModelForCausalLM.from_pretrained(models[1], dtype=torch.float32)
    with torch.no_grad():
        logprobs = torch.log_softmax(weights(torch.tensor([tokens])).logits[0], -1)
    expected = [logprobs[place - 1, tokens[place]].item() for place in range(begin, len(tokens))]
    assert experience.arrays["teacher_logprobs"].data.tolist() == pytest.approx(expected, abs=1e-2)
    gap = sequence.rollout_logprobs.sum() - sum(expected)
    assert experience.metrics["kl_divergence"] == pytest.approx(gap, abs=0.1)


async def test_a_judge_whose_process_is_killed_is_named(running: LoadedStageModels) -> None:
    """The last test here: nothing is left to judge with."""
    [judge] = running.auxiliary
    for child in CHILDREN:
        child.kill()
    async with asyncio.timeout(DIED_SECONDS):
        with pytest.raises(EngineDeadError):
            await judge.engine.generate(PROMPT, sampling())
    with pytest.raises(EngineDied, match="the engine of auxiliary model `judge` died"):
        await judge.engine.check()
    await running.policy.engine.check()
