"""Episodes of several steps, rewarded step by step or as a whole."""

import asyncio

from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.types import Experience, JsonObject
from trinity.workflows.step_wise import (
    AsyncRewardPropagationWorkflow,
    AsyncStepWiseRewardWorkflow,
    RewardPropagationWorkflow,
    StepWiseRewardWorkflow,
)

ROW: JsonObject = {"question": "q", "answer": "a"}


class Walk(StepWiseRewardWorkflow):
    """Two calls in the second step, none in the third."""

    max_step_num = 5

    def step(self, step_num: int) -> bool:
        for _ in range((1, 2, 0, 1)[step_num]):
            self.model.chat([{"role": "user", "content": str(step_num)}])
        return step_num < 3

    def reward(self, exps: list[Experience], step_num: int) -> float:
        return step_num + len(exps) / 10


class AsyncWalk(AsyncStepWiseRewardWorkflow):
    """As many steps as there may be."""

    @property
    def max_step_num(self) -> int:
        return 2

    async def step_async(self, step_num: int) -> bool:
        await self.model.chat_async([{"role": "user", "content": str(step_num)}])
        return True

    async def reward_async(self, exps: list[Experience], step_num: int) -> float:
        return float(step_num)


class Game(RewardPropagationWorkflow):
    """Over after two of its three steps."""

    max_step_num = 3

    def step(self, step_num: int) -> bool:
        self.model.chat([{"role": "user", "content": str(step_num)}])
        return step_num == 0

    def reward(self, exps: list[Experience]) -> float:
        return float(len(exps))


class AsyncGame(AsyncRewardPropagationWorkflow):
    """The same on the event loop."""

    max_step_num = 3

    async def step_async(self, step_num: int) -> bool:
        await self.model.chat_async([{"role": "user", "content": str(step_num)}])
        return step_num == 0

    async def reward_async(self, exps: list[Experience]) -> float:
        return float(len(exps))


async def test_each_steps_samples_have_the_steps_reward() -> None:
    walk = Walk(task=task_of(ROW), model=scripted_model(ScriptedEngine(lambda _: "x")))
    samples = await asyncio.to_thread(walk.run)
    assert [one.reward for one in samples] == [0.1, 1.2, 1.2, 3.1]
    assert [one.info.get("step_reward") for one in samples] == [0.1, None, 1.2, 3.1]


async def test_steps_end_at_their_number() -> None:
    walk = AsyncWalk(task=task_of(ROW), model=scripted_model(ScriptedEngine(lambda _: "x")))
    assert [one.reward for one in await walk.run_async()] == [0.0, 1.0]


async def test_the_reward_of_an_episode_is_every_steps() -> None:
    blocking = Game(task=task_of(ROW), model=scripted_model(ScriptedEngine(lambda _: "x")))
    on_loop = AsyncGame(task=task_of(ROW), model=scripted_model(ScriptedEngine(lambda _: "x")))
    for samples in (await asyncio.to_thread(blocking.run), await on_loop.run_async()):
        assert [one.reward for one in samples] == [2.0, 2.0]
        assert [one.metrics for one in samples] == [{"actual_env_steps": 2.0}] * 2


async def test_an_episode_ends_after_its_last_step_whether_or_not_it_would_go_on() -> None:
    blocking = Game(task=task_of(ROW), model=scripted_model(ScriptedEngine(lambda _: "x")))
    on_loop = AsyncGame(task=task_of(ROW), model=scripted_model(ScriptedEngine(lambda _: "x")))
    blocking.max_step_num = on_loop.max_step_num = 1
    for samples in (await asyncio.to_thread(blocking.run), await on_loop.run_async()):
        assert [one.reward for one in samples] == [1.0]
        assert samples[0].metrics == {"actual_env_steps": 1.0}
