"""Bases of workflows as Trinity-RFT has them.

    class Twice(SimpleWorkflow):
        def run(self) -> list[Experience]:
            answers = self.model.chat(self.format_messages(), **self.rollout_args)
            for i, answer in enumerate(answers):
                answer.reward = float(answer.response_text == self.truth)
                answer.eid.run = i + self.run_id_base
            return answers

Each runs in a thread and may block. One with `can_repeat` makes all runs of a task in one call, and
says with `eid.run` which run an experience is of; others are called once for each run.
"""

import inspect
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from trinity.errors import UserError
from trinity.rewards.awaiting import complete
from trinity.rewards.reward import RewardFn
from trinity.rewards.score import as_parts
from trinity.types import Experience
from trinity.workflows.math_workflow import SYSTEM_PROMPT
from trinity.workflows.model import ModelWrapper
from trinity.workflows.simple_workflow import SYSTEM_ROLES
from trinity.workflows.task import RewardParts, Task
from trinity.workflows.workflow import Workflow


class QuestionWorkflow(Workflow):
    """The common part of workflows that ask one question."""

    def take(self, task: Task) -> None:
        """Takes question, truth and settings of a task."""
        self.task = task
        self.format_args = task.format_args
        self.system_prompt = task.format_args.system_prompt
        self.reply_prefix = task.format_args.reply_prefix
        self.raw_task, self.task_desc, self.truth = task.raw_task, task.task_desc, task.truth
        self.is_eval = task.is_eval

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Takes the number of runs of the next call."""
        self.repeat_times, self.run_id_base = repeat_times, run_id_base
        self.task.rollout_args.n = repeat_times

    @property
    def rollout_args(self) -> dict[str, Any]:
        """Sampling of the taskset, as arguments of a call."""
        return asdict(self.task.rollout_args)

    def format_messages(self) -> list[dict[str, Any]]:
        """Returns the system prompt, the question and the beginning of the answer, if any.

        A question that is a list of messages stays as it is, with its own system prompt.
        """
        asked = self.task_desc
        messages = list(asked) if isinstance(asked, list) else [{"role": "user", "content": asked}]
        has_own = bool(messages) and messages[0]["role"] in SYSTEM_ROLES
        if self.system_prompt and not has_own:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        if self.reply_prefix:
            messages.append({"role": "assistant", "content": self.reply_prefix})
        return messages


class BaseSimpleWorkflow(QuestionWorkflow):
    """The common part of workflows with one question and one answer."""

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: Sequence[ModelWrapper] | None = None,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.reset(task)

    def reset(self, task: Task) -> None:
        """Takes question, truth and reward of the task."""
        self.take(task)
        self.workflow_args = task.workflow_args
        self.reward_fn_args = task.reward_fn_args
        own = reward_of(type(self))
        if own is None:
            self.reward_fn: Any = self._reward(task)
        elif isinstance(own, type):
            self.reward_fn = own(**self.reward_fn_args)

    def _reward(self, task: Task) -> Any:
        source = task.reward_fn
        if isinstance(source, type) and issubclass(source, RewardFn):
            return source(**self.reward_fn_args)
        raise UserError(
            f"{type(self).__name__} has no reward of its own: set `default_reward_fn_type` of its "
            "taskset"
        )

    def _score_all(self, answers: list[Experience], **more: Any) -> list[Experience]:
        for i, answer in enumerate(answers):
            parts = self.reward_fn(response=answer.response_text, truth=self.truth, **more)
            set_reward(answer, parts, self.run_id_base + i, self.reward_fn)
        return answers


def reward_of(kind: type) -> object:
    """Returns the `reward_fn` of a class, which precedes the taskset's, or None."""
    return inspect.getattr_static(kind, "reward_fn", None)


def set_reward(answer: Experience, parts: Any, run: int, reward: object) -> None:
    """Sets an answer's reward, its parts as metrics, and its run; awaits a reward that is async.

    Raises: BadReward for an invalid score, like native rewards (`as_parts`).
    """
    parts = complete(parts)
    name = getattr(reward, "__name__", type(reward).__name__)
    answer.reward_parts = as_parts(parts, name, sums_all=True)
    answer.metrics.update(answer.reward_parts)
    if isinstance(parts, RewardParts):
        answer.metrics.update(parts.beside)
    answer.reward = sum(answer.reward_parts.values())
    answer.eid.run = run


class SimpleWorkflow(BaseSimpleWorkflow):
    """One question, one answer a run, scored with the taskset's reward."""

    can_reset = True
    can_repeat = True

    def run(self) -> list[Experience]:
        """Returns an experience for each run."""
        return self._score_all(self.model.chat(self.format_messages(), **self.rollout_args))


class AsyncSimpleWorkflow(BaseSimpleWorkflow):
    """The asynchronous form of `SimpleWorkflow`, called once for each run."""

    is_async = True

    async def run_async(self) -> list[Experience]:
        """Returns an experience for each run."""
        answers = await self.model.chat_async(self.format_messages(), **self.rollout_args)
        return self._score_all(answers)


class MathWorkflow(SimpleWorkflow):
    """Asks for reasoning and result in tags; scored with `math_reward` by default."""

    def reset(self, task: Task) -> None:
        """Takes the task; sets the default reward and system prompt if they are missing."""
        prepare_math_task(task)
        super().reset(task)


def prepare_math_task(task: Task) -> None:
    """Sets the default reward and system prompt for mathematics if they are missing."""
    from trinity.rft.common.rewards import MathRewardFn  # has all graders

    if task.reward_fn is None:
        task.reward_fn = MathRewardFn
    if task.reward_fn is MathRewardFn and task.format_args.system_prompt is None:
        task.format_args.system_prompt = SYSTEM_PROMPT


class AsyncMathWorkflow(AsyncSimpleWorkflow, MathWorkflow):
    """The asynchronous form of `MathWorkflow`."""
