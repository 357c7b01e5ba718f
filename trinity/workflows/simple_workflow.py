"""One question, one answer, one reward."""

from functools import cached_property
from typing import ClassVar, cast

from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.messages import Message
from trinity.workflows.workflow import Workflow

SYSTEM_ROLES = ("system", "developer")


class SimpleWorkflow(Workflow):
    """Poses the task's question and scores the answer with the taskset's reward.

    `reply_prefix`, from the taskset's format or workflow_args, begins the answer and is scored
    with it.
    """

    is_async = True
    shares_loop = True
    known_args: ClassVar[frozenset[str] | None] = frozenset({"reply_prefix"})
    default_system_prompt: ClassVar[str | None] = None
    default_reward: ClassVar[str | None] = None

    async def run_async(self) -> list[Experience]:
        """Returns one experience, scored."""
        reward = self._reward()
        experiences = await self.model.chat_async(self.messages(), tools=self.task.tools)
        for experience in experiences:
            await self._score(experience, reward)
        return experiences

    def messages(self) -> list[Message]:
        """Returns the system prompt, if any, the question, and the reply prefix, if any.

        Messages of the prompt column stay as they are, with their own system prompt.
        """
        question = [cast(Message, message) for message in self.task.prompt_messages]
        question = question or [Message(role="user", content=self.task.question)]
        system = self.task.system_prompt or self.default_system
        has_own = question[0]["role"] in SYSTEM_ROLES
        messages = [Message(role="system", content=system)] if system and not has_own else []
        messages += question
        if self.reply_prefix:
            messages.append(Message(role="assistant", content=self.reply_prefix))
        return messages

    @property
    def default_system(self) -> str | None:
        """The system prompt for tasks without one."""
        return self.default_system_prompt

    @cached_property
    def scored_row(self) -> JsonObject:
        """The row as the reward sees it."""
        row: JsonObject = self.task.raw_task
        return row

    @property
    def reply_prefix(self) -> str:
        """The text with which the answer begins."""
        own = self.task.workflow_args.get("reply_prefix")
        return str(own or self.task.format_args.reply_prefix or "")

    async def _score(self, experience: Experience, reward: BoundReward) -> None:
        """Scores an answer; all parts are 0 for a prompt that was too long to be answered."""
        if experience.finish_reason is FinishReason.PROMPT_TRUNCATED:
            numbers = dict.fromkeys(await self._call(reward, experience, ""), 0.0)
        else:
            response = self.reply_prefix + experience.response_text
            numbers = await self._call(reward, experience, response)
        experience.reward_parts = reward.parts_of(numbers)
        experience.reward = sum(experience.reward_parts.values())
        experience.metrics |= numbers

    async def _call(
        self, reward: BoundReward, experience: Experience, response: str
    ) -> dict[str, float]:
        if reward.needs_truth:
            self.task.demand_truth()
        known = {
            "response": response,
            "truth": self.task.truth,
            "ground_truth": self.task.truth,
            "messages": self.messages(),
            "prompt": self.task.question,
            "task": self.scored_row,
            "response_length": experience.sequence.response_length,
            "response_token": experience.sequence.tokens[experience.sequence.prompt_length :],
            "finish_reason": experience.finish_reason,
        }
        return await reward.score(**known)

    def _reward(self) -> BoundReward:
        if self.task.reward is not None:
            return self.task.reward
        if self.default_reward is None:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} has no reward of its own; "
                "set default_reward_fn_type"
            )
        return BoundReward(REWARDS.get(self.default_reward), {}, self.default_reward)
