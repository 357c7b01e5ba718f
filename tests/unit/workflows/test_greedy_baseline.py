"""ReMax's baseline: the reward of one greedy answer a group, which is not trained on."""

import asyncio

import numpy as np
import pytest

from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.plugins import WORKFLOWS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, JsonObject
from trinity.workflows.greedy_baseline_workflow import Baselines


def _length(response: str) -> float:
    return float(len(response))


async def _run(engine: ScriptedEngine, row: JsonObject, *, is_eval: bool = False) -> Experience:
    task = task_of(row, reward=BoundReward(_length, {}, "length"), is_eval=is_eval)
    kind = WORKFLOWS.get("greedy_baseline_workflow")
    (experience,) = await kind(task=task, model=scripted_model(engine)).run_async()
    return experience


def _baseline(experience: Experience) -> float:
    (data,) = np.asarray(experience.arrays["reward_baseline"].data).tolist()
    return float(data)


def _engine() -> ScriptedEngine:
    return ScriptedEngine(["aa", "bbb", "greedy", "cccc", "other"])


async def test_runs_of_a_group_share_one_greedy_answer() -> None:
    engine = _engine()
    row: JsonObject = {"question": "group", "answer": ""}
    experiences = await asyncio.gather(_run(engine, row), _run(engine, row))
    assert sorted(one.reward or 0 for one in experiences) == [2, 3]
    assert [_baseline(one) for one in experiences] == [6, 6]
    assert [one.temperature for one in engine.samplings] == [1, 1, 0]
    assert [one.metrics["reward_baseline"] for one in experiences] == [6, 6]


async def test_another_task_has_its_own() -> None:
    engine = _engine()
    first = await _run(engine, {"question": "one", "answer": ""})
    second = await _run(engine, {"question": "two", "answer": ""})
    assert (_baseline(first), _baseline(second)) == (3, 4)


async def test_evaluations_have_none() -> None:
    engine = _engine()
    experience = await _run(engine, {"question": "three", "answer": ""}, is_eval=True)
    assert "reward_baseline" not in experience.arrays
    assert len(engine.prompts) == 1


async def test_a_baseline_that_fails_is_made_by_the_next_run() -> None:
    baselines, tries = Baselines(), list[int]()

    async def make() -> float:
        tries.append(1)
        await asyncio.sleep(0)
        if len(tries) == 1:
            raise ValueError("lost")
        return 5.0

    first, second = await asyncio.gather(
        baselines.get("key", make), baselines.get("key", make), return_exceptions=True
    )
    assert isinstance(first, ValueError)
    assert second == 5.0
    assert await baselines.get("key", make) == 5.0
    assert len(tries) == 2


@pytest.mark.parametrize(("max_size", "num_made"), [(1, 3), (2, 2)])
async def test_those_not_used_for_longest_leave_first(max_size: int, num_made: int) -> None:
    baselines, made = Baselines(max_size), list[str]()

    async def get(key: str) -> None:
        async def make() -> float:
            made.append(key)
            return 1.0

        await baselines.get(key, make)

    for key in ("a", "b", "a"):
        await get(key)
    assert len(made) == num_made
