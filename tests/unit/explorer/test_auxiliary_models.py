"""Models beside the policy: asked by workflows, never trained, told apart when they fail."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from services.explorer import engines
from services.explorer.engine.interface import EngineDied, EngineOptions
from services.explorer.engines import EngineManager, LoadedStageModels
from services.explorer.rollout.runner import AttemptRunner, DeadlineTasks, RunTimeLimit
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.types import Attempt, AttemptResult, WeightsId
from tests.support.model_free.engine import CharacterTokenizer
from tests.unit.explorer.builders import KEY, ArithmeticEngine, build_assignment, build_plan
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.rft.common.experience import Experience as TheirExperience
from trinity.rft.common.models.model import ModelWrapper
from trinity.rft.common.workflows import Task
from trinity.rft.common.workflows import Workflow as TheirWorkflow
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.threads import DaemonThreads
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.workflow import Workflow

WEIGHTS = WeightsId(version=4, incarnation=1)


class Asks(Workflow):
    """Puts what the judge says into the policy's experience."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        [own] = await self.model.chat_async([{"role": "user", "content": "question"}])
        [judge] = self.auxiliary_model_wrappers
        [said] = await judge.chat_async([{"role": "user", "content": own.response_text}])
        own.info["said"] = said.response_text
        own.reward = 1.0
        return [own]


class AsksOverHttp(Workflow):
    """The same in a thread, with OpenAI's client."""

    def run(self) -> list[Experience]:
        [own] = self.model.chat([{"role": "user", "content": "question"}])
        [client] = self.auxiliary_models
        answer = client.chat.completions.create(
            model="judge", messages=[{"role": "user", "content": own.response_text}]
        )
        own.info["said"] = answer.choices[0].message.content
        own.reward = 1.0
        return [own]


class Judged(TheirWorkflow):
    """The judge of Trinity-RFT's guide, whose client its constructor takes."""

    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models: Any = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.judge_model = self.auxiliary_models[0]

    def run(self) -> list[TheirExperience]:
        [answer] = self.model.chat([{"role": "user", "content": "question"}])
        said = self.judge_model.chat.completions.create(
            model=self.judge_model.model_path,
            messages=[{"role": "user", "content": f"Score: {answer.response_text}"}],
            temperature=0.0,
            max_tokens=10,
        )
        text = said.choices[0].message.content.strip()
        made = TheirExperience(
            tokens=answer.tokens,
            prompt_length=answer.prompt_length,
            reward=float(len(text)),
            logprobs=answer.logprobs,
        )
        made.info["said"] = text
        return [made]


class GivesTheJudgesAnswer(Workflow):
    """Takes the judge for the policy."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        [judge] = self.auxiliary_model_wrappers
        return await judge.chat_async([{"role": "user", "content": "question"}])


class ForgivesTheJudge(Workflow):
    """Is content with a judge that does not answer."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        [own] = await self.model.chat_async([{"role": "user", "content": "question"}])
        own.reward = 0.0
        with contextlib.suppress(Exception):
            await self.auxiliary_model_wrappers[0].chat_async([{"role": "user", "content": "?"}])
            own.reward = 1.0
        return [own]


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    WORKFLOWS.register("test_asks", Asks)
    WORKFLOWS.register("test_forgives_the_judge", ForgivesTheJudge)
    WORKFLOWS.register("test_asks_over_http", AsksOverHttp)
    WORKFLOWS.register("test_judged", Judged)
    WORKFLOWS.register("test_gives_the_judges_answer", GivesTheJudgesAnswer)


@dataclass
class World:
    """Engines as a stage has them, in the order in which they were started."""

    plan: ExperimentPlan
    started: list[tuple[EngineOptions, ArithmeticEngine]] = field(default_factory=list)
    fails: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.waits = WaitRegistry(owner="explorer", on_change=self.changed.set)
        self.engines = EngineManager(start=self.start, waits=self.waits)

    async def start(self, options: EngineOptions) -> ArithmeticEngine:
        if self.fails and self.fails in options.role:
            raise RuntimeError("out of memory")
        self.started.append((options, ArithmeticEngine()))
        return self.started[-1][1]

    async def run(self, models: LoadedStageModels, number: int = 0) -> AttemptResult:
        [stage] = self.plan.stages
        bench = WorkflowFactory(
            plan=stage,
            seed=self.plan.seed,
            generator=models.policy.engine,
            tokenizer=models.policy.tokenizer,
            auxiliary=models.auxiliary,
        )
        runner = AttemptRunner(
            factory=bench,
            engine=models.policy.engine,
            limit=RunTimeLimit(stage.config.explorer),
            threads=DaemonThreads(name="workflow", max_threads=2),
            tasks=DeadlineTasks(),
            auxiliary=[one.engine for one in models.auxiliary],
        )
        attempt = Attempt(key=KEY, assignment=build_assignment(), run=0, number=number)
        return await runner.run_attempt(attempt, WEIGHTS)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    world = World(build_plan(tmp_path, **asking("test_asks", tmp_path)))
    yield world
    await world.engines.close_engines()


def asking(workflow: str, folder: Path, **judge: JsonValue) -> dict[str, JsonObject]:
    model: JsonObject = {
        "name": "judge",
        "model_path": str(folder / "judge"),
        "engine_num": 2,
        **judge,
    }
    return {
        "buffer": {"explorer_input": {"taskset": {"default_workflow_type": workflow}}},
        "explorer": {"auxiliary_models": [model]},
    }


async def test_a_workflow_asks_a_judge_whose_answers_follow_from_the_place_of_the_run(
    world: World,
) -> None:
    models = await world.engines.ensure(world.plan.stages[0])
    first, again = [await world.run(models, number) for number in range(2)]
    assert first.failure == again.failure == ""
    [one], [other] = first.experiences, again.experiences
    assert one.info["said"] == other.info["said"]
    assert one.sequence.tokens.tolist() == other.sequence.tokens.tolist()
    own, *judges = [started.seeds for _, started in world.started]
    assert len(set(own)) == 1, "another attempt has the same seeds"
    assert len({seed for seeds in judges for seed in seeds}) == 1
    assert set(own).isdisjoint(seed for seeds in judges for seed in seeds), (
        "the judge draws otherwise than the policy"
    )
    assert [span.version for span in one.version_spans] == [4]


@pytest.mark.parametrize("workflow", ["test_asks_over_http", "test_judged"])
async def test_a_thread_asks_the_judge_over_an_address_of_its_own(
    workflow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    world = World(build_plan(tmp_path, **asking(workflow, tmp_path)))
    models = await world.engines.ensure(world.plan.stages[0])
    outcome = await world.run(models)
    await world.engines.close_engines()
    assert outcome.failure == ""
    assert len(str(outcome.experiences[0].info["said"])) == ArithmeticEngine().num_tokens


async def test_an_answer_of_the_judge_is_no_experience_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    world = World(build_plan(tmp_path, **asking("test_gives_the_judges_answer", tmp_path)))
    outcome = await world.run(await world.engines.ensure(world.plan.stages[0]))
    await world.engines.close_engines()
    assert "an answer of the auxiliary model `judge`" in outcome.failure
    assert outcome.experiences == []


async def test_new_weights_reach_the_policy_alone(world: World, tmp_path: Path) -> None:
    models = await world.engines.ensure(world.plan.stages[0])
    await models.policy.engine.load_weights(tmp_path / "v1")
    assert [started.loaded for _, started in world.started] == [[tmp_path / "v1"], [], []]


async def test_each_model_has_its_own_engines_and_gpus(world: World) -> None:
    await world.engines.ensure(world.plan.stages[0])
    assert [(one.role, one.number, one.first_gpu) for one, _ in world.started] == [
        ("the rollout engine", 0, 0),
        ("the engine of auxiliary model `judge`", 0, 1),
        ("the engine of auxiliary model `judge`", 1, 1),
    ]
    assert {one.num_process_gpus for one, _ in world.started} == {3}


async def test_a_judge_that_dies_ends_the_process_as_the_policys_engine_does(world: World) -> None:
    models = await world.engines.ensure(world.plan.stages[0])
    for _, judge in world.started[1:]:
        judge.died = EngineDied("the process of the engine of auxiliary model `judge` died")
    with pytest.raises(EngineDied, match="auxiliary model `judge`"):
        await world.run(models)


async def test_a_judge_that_dies_is_noticed_though_the_workflow_forgives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    world = World(build_plan(tmp_path, **asking("test_forgives_the_judge", tmp_path)))
    models = await world.engines.ensure(world.plan.stages[0])
    for _, judge in world.started[1:]:
        judge.died = EngineDied("the process of the engine of auxiliary model `judge` died")
    with pytest.raises(EngineDied, match="auxiliary model `judge`"):
        await world.run(models)
    await world.engines.close_engines()


async def test_a_judge_that_does_not_start_is_named_and_nothing_is_left(world: World) -> None:
    world.fails = "judge"
    with pytest.raises(UserError, match=r"auxiliary model `judge` cannot run .*out of memory"):
        await world.engines.ensure(world.plan.stages[0])
    assert not world.engines.is_running


async def test_a_judge_that_is_slow_is_what_the_explorer_says_it_waits_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explorer.engine.interface.SHOWN_AFTER_SECONDS", 0.05)
    models = await world.engines.ensure(world.plan.stages[0])
    gate = asyncio.Event()
    for _, judge in world.started[1:]:
        judge.gate = gate
    world.changed.clear()
    running = asyncio.create_task(world.run(models))
    async with asyncio.timeout(60):
        await world.changed.wait()
    waits = world.waits.to_proto()
    assert (waits[0].waits_for, waits[0].reason) == (
        "engine",
        "to answer as auxiliary model `judge`",
    )
    gate.set()
    assert (await running).failure == ""
    assert world.waits.to_proto() == []
