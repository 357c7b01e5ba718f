"""One question, one answer, one reward."""

import math
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.messages import Message
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

if TYPE_CHECKING:
    from PIL.Image import Image

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


class FormattedPrompt(SimpleWorkflow):
    """Asks the row's question within a template, with its images between two sizes.

    class Ask(FormattedPrompt):
        template = "{{ content | trim }} Put the final answer within \\\\boxed{}."
        min_pixels, max_pixels = 262144, 4194304
    """

    shares_loop: ClassVar[bool] = False
    template: ClassVar[str] = "{{ content }}"
    min_pixels: ClassVar[int | None] = None
    max_pixels: ClassVar[int | None] = None

    def __init__(self, *, task: Task, **models: Any) -> None:
        from jinja2 import Template

        form, row = task.format_args, dict(task.raw_task)
        template = Template(self.template.strip())
        row[form.prompt_key] = template.render(content=row[form.prompt_key])
        if form.image_key and (images := row.get(form.image_key)):
            row[form.image_key] = [self._resized(image) for image in images]
        super().__init__(task=replace(task, raw_task=row), **models)

    def _resized(self, image: "Image") -> "Image":
        """An image with at most and then at least so many pixels, and its proportions."""
        for bound, is_out in ((self.max_pixels, int.__gt__), (self.min_pixels, int.__lt__)):
            if bound is not None and is_out(image.width * image.height, bound):
                factor = math.sqrt(bound / (image.width * image.height))
                image = image.resize((int(image.width * factor), int(image.height * factor)))
        return image
