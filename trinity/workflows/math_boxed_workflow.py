r"""A mathematical question whose answer is in `\boxed{}`."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from trinity.rewards.math_boxed_reward import MathBoxedReward
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, FinishReason, JsonValue
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.workflow import Arguments

BOXED = "Reason step by step, and put the final answer within \\boxed{}."
THINKING = (
    "First reason between <think> and </think>, then answer. Put the final answer within \\boxed{}."
)


class MathBoxedWorkflow(SimpleWorkflow):
    """Scored with `math_boxed_reward` by default; truncated responses are not trained on.

    use_base: the model gets plain text instead of a chat. with_think: reasoning is requested in
    tags, and `format_score_coef` is the penalty for missing tags.
    """

    usual_args: ClassVar[Mapping[str, JsonValue]] = {
        "use_base": False,
        "with_think": False,
        "format_score_coef": 0.1,
        "reply_prefix": "",
    }
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)
    default_reward: ClassVar[str | None] = "math_boxed_reward"

    async def run_async(self) -> list[Experience]:
        """Returns one experience, scored."""
        arguments, reward = Arguments(self), self._reward()
        experiences = await self._asked(use_base=arguments.boolean("use_base"))
        for experience in experiences:
            await self._score(experience, reward)
            if experience.finish_reason is FinishReason.LENGTH:
                body = experience.sequence
                body.action_mask = np.zeros_like(body.action_mask)
        return experiences

    @property
    def default_system(self) -> str | None:
        """Instructions on how to answer."""
        return THINKING if Arguments(self).boolean("with_think") else BOXED

    async def _asked(self, *, use_base: bool) -> list[Experience]:
        if not use_base:
            return await self.model.chat_async(self.messages(), tools=self.task.tools)
        system = self.task.system_prompt or self.default_system
        text = f"{system}\n\nQuestion: {self.task.question}\nAnswer: {self.reply_prefix}"
        return await self.model.generate_async([text])

    def _reward(self) -> BoundReward:
        if self.task.reward is not None:
            return self.task.reward
        arguments = Arguments(self)
        args: dict[str, JsonValue] = {
            "with_think": arguments.boolean("with_think"),
            "format_score_coef": arguments.number("format_score_coef"),
        }
        return BoundReward(MathBoxedReward, args, "math_boxed_reward")


class SimpleMmWorkflow(MathBoxedWorkflow):
    """A question about images: like `math_boxed_workflow`, with reasoning in tags by default."""

    usual_args: ClassVar[Mapping[str, JsonValue]] = {
        **MathBoxedWorkflow.usual_args,
        "with_think": True,
    }
