"""Workflows that take their time, bring a client of their own, or ask another model."""

import asyncio

from trinity.types import Experience
from trinity.workflows.workflow import Workflow


class OneInFourNeverEnds(Workflow):
    """Answers, but for every fourth task."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        """One experience, rewarded by its first letter."""
        if self.task.row % 4 == 3:
            await asyncio.Event().wait()
        experiences = await self.model.chat_async([{"role": "user", "content": "a"}])
        return _rewarded(experiences)


class AlwaysRaises(Workflow):
    """Fails for every task, and names it."""

    def run(self) -> list[Experience]:
        """Never an experience."""
        raise ZeroDivisionError(f"the workflow is broken at task {self.task.row}")


class Agent(Workflow):
    """Two turns over OpenAI's client."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        """What the calls gave."""
        async with self.model.get_openai_async_client() as client:
            for _ in range(2):
                await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": self.task.task_desc}]
                )
        return _rewarded(self.model.extract_experience_from_history())


class Judged(Workflow):
    """Rewarded by what the first of the models beside the policy says of the answer."""

    is_async = True
    shares_loop = True

    async def run_async(self) -> list[Experience]:
        """One experience."""
        experiences = await self.model.chat_async([{"role": "user", "content": "a"}])
        judge = self.auxiliary_model_wrappers[0]
        for experience in experiences:
            [said] = await judge.chat_async([{"role": "user", "content": experience.response_text}])
            experience.reward = float(sum(said.response_text.encode()) % 7)
        return experiences


def _rewarded(experiences: list[Experience]) -> list[Experience]:
    for experience in experiences:
        experience.reward = float(ord(experience.response_text[0]) % 7)
    return experiences
