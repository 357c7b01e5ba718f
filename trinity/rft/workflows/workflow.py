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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from trinity.errors import UserError
from trinity.plugins import get_logger
from trinity.rewards.awaiting import complete
from trinity.rewards.reward import RewardFn
from trinity.rewards.score import as_parts
from trinity.rft.workflows.model import ModelWrapper
from trinity.rft.workflows.samples import numbers_of
from trinity.rft.workflows.task import RewardParts, Task
from trinity.types import Experience, JsonValue
from trinity.workflows.math_workflow import SYSTEM_PROMPT
from trinity.workflows.simple_workflow import SYSTEM_ROLES


class Workflow:
    """The base of all; a subclass defines `run`, or `run_async`, with `is_async` if it has both.

    `can_reset`: an instance serves one task after another, each begun with `reset`. `can_repeat`:
    `set_repeat_times` says how many runs the next call makes, and the number of the first.
    """

    can_reset: bool = False
    can_repeat: bool = False
    is_async: bool = False
    gives_several_samples: ClassVar[bool] = False
    """True if the number of a run's samples is not known before it, see `buffer.train_step`."""
    known_args: ClassVar[frozenset[str] | None] = None
    """Names in `workflow_args`, for the documentation; they are not checked."""
    usual_args: ClassVar[Mapping[str, JsonValue]] = {}
    """Defaults of `workflow_args`, for the documentation."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Sets `is_async` where a class says nothing of it and `run_async` is all that it has."""
        super().__init_subclass__(**kwargs)
        says = any("is_async" in vars(base) for base in cls.__mro__ if base is not Workflow)
        if not says and cls.run is Workflow.run and cls.run_async is not Workflow.run_async:
            cls.is_async = inspect.iscoroutinefunction(cls.run_async)

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: Sequence[ModelWrapper] | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.auxiliary_model_wrappers = auxiliary_models
        self.repeat_times = 1
        self.run_id_base = 0
        self.logger = get_logger(type(self).__module__)

    @property
    def auxiliary_models(self) -> Any:
        """OpenAI clients of the auxiliary models, asynchronous with `is_async`, or None."""
        own = vars(self).get("_auxiliary_models")
        if own is not None or not self.auxiliary_model_wrappers:
            return own
        wrappers = self.auxiliary_model_wrappers
        if type(self).is_async:
            return [wrapper.get_openai_async_client() for wrapper in wrappers]
        return [wrapper.get_openai_client() for wrapper in wrappers]

    @auxiliary_models.setter
    def auxiliary_models(self, models: Any) -> None:
        self._auxiliary_models = models

    @property
    def resettable(self) -> bool:
        """The same as `can_reset`."""
        return type(self).can_reset

    @property
    def repeatable(self) -> bool:
        """The same as `can_repeat`."""
        return type(self).can_repeat

    @property
    def asynchronous(self) -> bool:
        """The same as `is_async`."""
        return type(self).is_async

    def reset(self, task: Task) -> None:
        """Prepares the instance for another task; needed with `can_reset`."""
        raise NotImplementedError(f"{type(self).__name__} has can_reset but no reset")

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Takes the number of runs of the next call; needed with `can_repeat`."""
        raise NotImplementedError(f"{type(self).__name__} has can_repeat but no set_repeat_times")

    # Subclasses define one of the two.
    def run(self) -> list[Experience]:
        """Makes the experiences."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    async def run_async(self) -> list[Experience]:
        """Makes the experiences, on a loop of its own."""
        raise NotImplementedError(f"{type(self).__name__} has is_async but no run_async")


class MultiTurnWorkflow(Workflow):
    """The base of workflows that make one experience of a transcript."""

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Takes the number of runs of the next call."""
        self.repeat_times, self.run_id_base = repeat_times, run_id_base

    def process_messages_to_experience(
        self,
        messages: Sequence[Any],
        reward: float,
        info: Mapping[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """Returns the sample of a transcript; numbers in `info` become metrics too."""
        made = self.model.convert_messages_to_experience(messages)
        return _with_reward(made, reward, info or {}, truncate_status)

    async def process_messages_to_experience_async(
        self,
        messages: Sequence[Any],
        reward: float,
        info: Mapping[str, Any] | None = None,
        truncate_status: str | None = None,
    ) -> Experience:
        """Returns the sample of a transcript; numbers in `info` become metrics too."""
        made = await self.model.convert_messages_to_experience_async(messages)
        return _with_reward(made, reward, info or {}, truncate_status)


def _with_reward(
    made: Experience, reward: float, info: Mapping[str, Any], truncate_status: str | None
) -> Experience:
    """Sets what a transcript's end decides."""
    made.reward = reward
    made.info = dict(info)
    made.metrics = numbers_of({k: v for k, v in info.items() if isinstance(v, int | float)})
    if truncate_status is not None:
        made.truncate_status = truncate_status
    return made


class QuestionWorkflow(Workflow):
    """The common part of workflows that ask one question."""

    def take(self, task: Task) -> None:
        """Takes question, truth and settings of a task."""
        self.task = task
        self.format_args = task.format_args
        self.system_prompt = task.format_args.system_prompt
        self.reply_prefix = task.format_args.reply_prefix
        self.raw_task, self.task_desc, self.truth = task.raw_task, task.task_desc, task.truth

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
    """Returns what a class defines as `reward_fn`, which comes before the taskset's; else None."""
    return inspect.getattr_static(kind, "reward_fn", None)


def set_reward(answer: Experience, parts: Any, run: int, reward: object) -> None:
    """Sets an answer's reward, its parts as metrics, and its run; awaits a reward that is async.

    Raises: BadReward for what is no score, as rewards of ours (`as_parts`).
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
        """Takes the task, with reward and system prompt where it has none."""
        prepare_math_task(task)
        super().reset(task)


def prepare_math_task(task: Task) -> None:
    """Gives a task the reward and the system prompt of mathematics where it has none."""
    from trinity.rft.common.rewards import MathRewardFn  # has all graders

    if task.reward_fn is None:
        task.reward_fn = MathRewardFn
    if task.reward_fn is MathRewardFn and task.format_args.system_prompt is None:
        task.format_args.system_prompt = SYSTEM_PROMPT


class AsyncMathWorkflow(AsyncSimpleWorkflow, MathWorkflow):
    """The asynchronous form of `MathWorkflow`."""
