"""One question, one answer, and the reward of a greedy answer to the same question."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import numpy as np

from trinity.types import Alignment, Array, Experience
from trinity.workflows.simple_workflow import SimpleWorkflow

REWARD_BASELINE = "reward_baseline"
"""The array from which trainers read it."""
MAX_BASELINES = 4096
"""Baselines that are kept, those not used for longest leave first."""


class Baselines:
    """Rewards of greedy answers, each made once for all runs of a group that meet here.

    A second run of the group waits for the first one, and makes the answer itself if that fails.

        reward = await baselines.get(key, make)
    """

    def __init__(self, max_size: int = MAX_BASELINES) -> None:
        self._max_size = max_size
        self._rewards: OrderedDict[str, float] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, key: str, make: Callable[[], Awaitable[float]]) -> float:
        """Returns the reward with this key; calls `make` if it is missing."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            if key not in self._rewards:
                self._rewards[key] = await make()
            self._rewards.move_to_end(key)
            while len(self._rewards) > self._max_size:
                self._rewards.popitem(last=False)
            return self._rewards[key]


_BASELINES = Baselines()


class GreedyBaselineWorkflow(SimpleWorkflow):
    """Used with `advantage_fn: remax`, which subtracts that reward as `reward_baseline`.

    The runs of a task on one explorer share the greedy answer, made by the weights that they have;
    it is not trained on.
    """

    async def run_async(self) -> list[Experience]:
        """Returns one experience, scored, with its baseline."""
        experiences = await super().run_async()
        if self.task.is_eval:
            return experiences
        key = json.dumps([self.model.weights, self.messages(), self.task.raw_task], default=str)
        baseline = await _BASELINES.get(key, self._greedy_reward)
        for experience in experiences:
            data = np.array([baseline], dtype=np.float32)
            experience.arrays[REWARD_BASELINE] = Array(data, Alignment.SAMPLE)
            experience.metrics[REWARD_BASELINE] = baseline
        return experiences

    async def _greedy_reward(self) -> float:
        """Returns the reward of a greedy answer.

        It comes after the sampled one, whose seed follows from the number of the call.
        """
        greedy = await self.model.chat_async(
            self.messages(), tools=self.task.tools, temperature=0.0, top_p=1.0, top_k=-1
        )
        await self._score(greedy[0], self._reward())
        assert greedy[0].reward is not None
        return greedy[0].reward
