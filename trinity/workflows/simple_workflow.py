"""One question, one answer, one reward."""

from functools import partial
from typing import ClassVar

from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import Reward
from trinity.threads import DaemonThreads
from trinity.types import Experience, FinishReason
from trinity.workflows.messages import Message
from trinity.workflows.workflow import Workflow

REWARD_THREADS = DaemonThreads(name="reward", max_threads=32)
"""Rewards that wait for something are many at a time; those that compute gain nothing by it."""


class SimpleWorkflow(Workflow):
    """Asks the task's question and scores the answer with the taskset's reward.

    `reply_prefix` in the taskset's format, or in workflow_args, is put before the model's own words
    and scored with them.
    """

    is_async = True
    known_args: ClassVar[frozenset[str] | None] = frozenset({"reply_prefix"})
    default_system_prompt: ClassVar[str | None] = None
    default_reward: ClassVar[str | None] = None

    async def run_async(self) -> list[Experience]:
        """One experience, scored."""
        reward = self._reward()
        experiences = await self.model.chat_async(self.messages())
        for experience in experiences:
            await self._score(experience, reward)
        return experiences

    def messages(self) -> list[Message]:
        """System prompt, question and the beginning of the answer, as far as they are given."""
        system = self.task.system_prompt or self.default_system
        messages = [Message(role="system", content=system)] if system else []
        messages.append(Message(role="user", content=self.task.task_desc))
        if self.reply_prefix:
            messages.append(Message(role="assistant", content=self.reply_prefix))
        return messages

    @property
    def default_system(self) -> str | None:
        """The system prompt where the task has none."""
        return self.default_system_prompt

    @property
    def reply_prefix(self) -> str:
        """What the answer begins with."""
        own = self.task.workflow_args.get("reply_prefix")
        return str(own or self.task.format.reply_prefix or "")

    async def _score(self, experience: Experience, reward: Reward) -> None:
        """A prompt that was too long had no answer: it is scored as an empty one, at 0."""
        if experience.finish_reason is FinishReason.PROMPT_TRUNCATED:
            parts = dict.fromkeys(await self._call(reward, experience, ""), 0.0)
        else:
            response = self.reply_prefix + experience.response_text
            parts = await self._call(reward, experience, response)
        experience.reward_parts = parts
        experience.reward = sum(parts.values())
        experience.metrics |= parts

    async def _call(
        self, reward: Reward, experience: Experience, response: str
    ) -> dict[str, float]:
        if reward.needs_truth:
            self.task.demand_truth()
        known = {
            "response": response,
            "truth": self.task.truth,
            "ground_truth": self.task.truth,
            "messages": self.messages(),
            "prompt": self.task.task_desc,
            "task": self.task.raw_task,
            "response_length": experience.sequence.response_length,
            "finish_reason": experience.finish_reason,
        }
        if reward.in_thread:
            return await REWARD_THREADS.run(partial(reward, **known))
        return reward(**known)

    def _reward(self) -> Reward:
        if self.task.reward is not None:
            return self.task.reward
        if self.default_reward is None:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} has no reward of its own; "
                "set default_reward_fn_type"
            )
        return Reward(REWARDS.get(self.default_reward), {}, self.default_reward)
