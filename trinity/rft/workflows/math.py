"""Workflows of mathematics as Trinity-RFT has them, to build on."""

from dataclasses import replace
from typing import Any

import numpy as np

from trinity.rewards.math_grading import is_right_answer, last_boxed
from trinity.rft.workflows.workflow import SimpleWorkflow, set_reward
from trinity.types import RESPONSE_TRUNCATED, Experience
from trinity.workflows.math_boxed_workflow import BOXED, THINKING
from trinity.workflows.task import GenerationConfig, Task
from trinity.workflows.workflow import Workflow

EVALUATION = GenerationConfig(temperature=0.6, top_p=0.8, logprobs=0, n=1)


def verify_math_answer(response_text: str, ground_truth: Any) -> tuple[float, dict[str, Any]]:
    """Returns 1 if the last boxed answer is the truth, else 0, and both answers."""
    given, truth = last_boxed(response_text) or "", str(ground_truth)
    wanted = last_boxed(truth) or truth
    accuracy = float(is_right_answer(given, wanted))
    return accuracy, {"extracted_answer": given, "ground_truth": wanted}


class MathBoxedWorkflow(SimpleWorkflow):
    r"""A question whose answer is in `\boxed{}`; truncated responses are not trained on.

    `use_base`: the model gets plain text. `with_think`: reasoning is asked for in tags, and
    `format_score_coef` is the penalty for missing tags.
    """

    def reset(self, task: Task) -> None:
        """Takes the task, its arguments, and instructions where it has no system prompt."""
        arguments = task.workflow_args
        self.use_base = bool(arguments.get("use_base", False))
        self.with_think = bool(arguments.get("with_think", False))
        self.format_score_coef = arguments.get("format_score_coef", 0.1)
        super().reset(task)
        if self.system_prompt is None:
            self.system_prompt = THINKING if self.with_think else BOXED

    def _reward(self, task: Task) -> Any:
        from trinity.rft.common.rewards import MathBoxedRewardFn  # has all graders

        return MathBoxedRewardFn() if task.reward_fn is None else super()._reward(task)

    def format_prompt(self) -> str:
        """Returns the question as plain text."""
        system = f"System:{self.system_prompt}\n" if self.system_prompt else ""
        return f"{system}User:\n{self.task_desc}\nAssistant:\n"

    def run(self) -> list[Experience]:
        """Returns an experience for each run."""
        if self.use_base:
            return self._judged(self.model.generate([self.format_prompt()], **self.rollout_args))
        return self._judged(self.model.chat(self.format_messages(), **self.rollout_args))

    def _judged(self, answers: list[Experience]) -> list[Experience]:
        for i, answer in enumerate(answers):
            parts = self.reward_fn(
                response=answer.response_text,
                truth=self.truth,
                with_think=self.with_think,
                format_score_coef=self.format_score_coef,
                response_token=answer.sequence.tokens[answer.prompt_length :],
                info=answer.info,
            )
            set_reward(answer, parts, self.run_id_base + i, self.reward_fn)
            if answer.truncate_status == RESPONSE_TRUNCATED:
                answer.action_mask = np.zeros(answer.sequence.response_length)
        return answers


class AsyncMathBoxedWorkflow(MathBoxedWorkflow):
    """The asynchronous form of `MathBoxedWorkflow`."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        """Returns an experience for each run."""
        if self.use_base:
            prompts = [self.format_prompt()]
            return self._judged(await self.model.generate_async(prompts, **self.rollout_args))
        answers = await self.model.chat_async(self.format_messages(), **self.rollout_args)
        return self._judged(answers)


class MathRMWorkflow(SimpleWorkflow):
    """Scored by a reward that takes the answer, the whole chat, and `ground_truth`."""

    def run(self) -> list[Experience]:
        """Returns an experience for each run."""
        messages = self.format_messages()
        return self._judged(messages, self.model.chat(messages, **self.rollout_args))

    def _judged(self, messages: list[Any], answers: list[Experience]) -> list[Experience]:
        for i, answer in enumerate(answers):
            parts = self.reward_fn(answer, messages, ground_truth=self.truth)
            set_reward(answer, parts, self.run_id_base + i, self.reward_fn)
        return answers


class AsyncMathRMWorkflow(MathRMWorkflow):
    """The asynchronous form of `MathRMWorkflow`."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        """Returns an experience for each run."""
        messages = self.format_messages()
        return self._judged(messages, await self.model.chat_async(messages, **self.rollout_args))


class MathEvalWorkflow(Workflow):
    """The accuracy of the last boxed answer to the column `question`, with its own sampling."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.raw_task = self.task.raw_task
        self.truth = self.task.truth
        self.eval_gen_args = vars(replace(EVALUATION))

    def format_messages(self) -> list[dict[str, Any]]:
        """Returns the question with instructions."""
        return [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"{self.raw_task['question']}\n{BOXED}"},
        ]

    def run(self) -> list[Experience]:
        """Returns one experience with the metric `accuracy`."""
        return self._measured(self.model.chat(self.format_messages(), **self.eval_gen_args))

    def _measured(self, answers: list[Experience]) -> list[Experience]:
        for answer in answers:
            accuracy, _ = verify_math_answer(answer.response_text, self.truth)
            answer.reward, answer.metrics["accuracy"] = accuracy, accuracy
        return answers


class AsyncMathEvalWorkflow(MathEvalWorkflow):
    """The asynchronous form of `MathEvalWorkflow`."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        """Returns one experience with the metric `accuracy`."""
        messages = self.format_messages()
        return self._measured(await self.model.chat_async(messages, **self.eval_gen_args))
