"""A task as Trinity-RFT's workflows take it: settings that they may change, and the row."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from trinity.columns import optional_column
from trinity.config.plan.parts import ResolvedSampling
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward, RewardFn, RewardSource
from trinity.types import Experience, JsonObject
from trinity.workflows.task import Task as OurTask
from trinity.workflows.task import truth_of

if TYPE_CHECKING:
    from trinity.workflows.trinity_rft.model import ModelWrapper
    from trinity.workflows.trinity_rft.workflow import Workflow


@dataclass
class FormatConfig:
    """Meaning of the columns."""

    prompt_type: Any = "messages"
    prompt_key: str = "prompt"
    response_key: str = "response"
    system_prompt_key: str | None = None
    system_prompt: str | None = None
    messages_key: str = "message"
    tools_key: str = "tools"
    image_key: str | None = None
    video_key: str | None = None
    reply_prefix: str | None = None
    workflow_key: str = ""
    reward_fn_key: str = ""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    enable_concatenated_multi_turn: bool = False
    chat_template: str | None = None
    enable_thinking: bool | None = None


@dataclass
class GenerationConfig:
    """Sampling of one taskset; `n` is the number of runs that the workflow makes."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1


@dataclass(eq=False)
class Task(dict):  # type: ignore[type-arg]  # a dict, as theirs is
    """One row of a taskset with its settings."""

    workflow: Any = None
    repeat_times: int | None = None
    format_args: FormatConfig = field(default_factory=FormatConfig)
    rollout_args: GenerationConfig = field(default_factory=GenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: Any = None
    raw_task: Any = None
    batch_id: int | str = ""
    task_id: int | str = ""
    index: dict[str, Any] = field(default_factory=dict)

    @property
    def task_desc(self) -> Any:
        """The prompt, by the name of its column or a path into one; None if the row has none."""
        return optional_column(self.raw_task or {}, self.format_args.prompt_key)

    @property
    def truth(self) -> Any:
        """The true response, by the name of its column or a path; None if the row has none."""
        return truth_of(self.raw_task or {}, self.format_args.response_key)

    def to_dict(self) -> Any:
        """Returns the row."""
        return self.raw_task

    def to_workflow(
        self, model: "ModelWrapper", auxiliary_models: "list[ModelWrapper] | None" = None
    ) -> "Workflow":
        """Returns the task's workflow over these models."""
        made: Workflow = self.workflow(task=self, model=model, auxiliary_models=auxiliary_models)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReward:
    """The reward of a taskset, before it is made."""

    source: RewardSource
    args: JsonObject
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInputs:
    """Everything that a task is made of."""

    workflow: type
    task: OurTask
    sampling: ResolvedSampling
    reward: NamedReward | None
    explore_step: int = 0
    repeat_times: int = 1
    """Runs of the task in all; a workflow without `can_repeat` makes one of them."""
    num_runs: int = 1
    needs_reward: bool = True
    """False if the algorithm makes nothing of rewards: one that is missing is 0."""


def create_task(inputs: TaskInputs) -> Task:
    """Returns a task that the workflow may change without a change to any other."""
    task, sampling, reward = inputs.task, inputs.sampling, inputs.reward
    known = {own.name for own in fields(FormatConfig)}
    form = {k: v for k, v in task.format.model_dump().items() if k in known}
    return Task(
        workflow=inputs.workflow,
        repeat_times=inputs.repeat_times,
        format_args=FormatConfig(**{**form, "system_prompt": task.system_prompt}),
        rollout_args=GenerationConfig(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            logprobs=sampling.logprobs,
            max_tokens=sampling.max_tokens,
            n=inputs.num_runs,
        ),
        workflow_args=dict(task.workflow_args),
        reward_fn_args=dict(reward.args) if reward is not None else {},
        is_eval=task.is_eval,
        reward_fn=reward_class(reward, task.raw_task),
        raw_task=task.raw_task,
        batch_id=inputs.explore_step,
        task_id=task.index,
        index={"taskset": task.taskset, "index": task.index},
    )


def reward_class(reward: NamedReward | None, row: JsonObject) -> type | None:
    """Returns the class that makes the taskset's reward, as workflows call it.

    One that was written for Trinity-RFT is given as it is. A reward of ours takes the parameters
    that it names, whatever else a workflow passes.
    """
    if reward is None:
        return None
    from trinity.common.rewards import CLASSES  # has all graders
    from trinity.common.rewards import RewardFn as TheirRewardFn

    if reward.name in CLASSES and not REWARDS.is_own(reward.name):
        return CLASSES[reward.name]
    source = reward.source
    if isinstance(source, type) and issubclass(source, TheirRewardFn):
        return source
    return _adapted(reward, row)


class Score(dict[str, float]):
    """The parts of a reward, which a workflow may add up; `beside` are numbers that are no part."""

    beside: Mapping[str, float] = {}


def _adapted(reward: NamedReward, row: JsonObject) -> type:
    """Returns a class over a reward of ours, or a function, with Trinity-RFT's way of calling."""

    class Adapted(RewardFn):
        def __init__(self, **args: Any) -> None:
            self._bound = BoundReward(reward.source, args, reward.name)

        def __call__(self, response: Any = None, *others: Any, **known: Any) -> Score:
            if others:
                known.setdefault("messages", others[0])
            numbers = self._bound(**_values(response, {"task": row, **known}))
            score = Score(self._bound.parts_of(numbers))
            score.beside = numbers
            return score

    Adapted.__name__ = Adapted.__qualname__ = reward.name
    return Adapted


def _values(response: Any, known: dict[str, Any]) -> dict[str, Any]:
    """Returns all values that a reward may name; `truth` and `ground_truth` are the same."""
    truth = known.get("truth", known.get("ground_truth"))
    values = {"prompt": None, "messages": None, **known, "truth": truth, "ground_truth": truth}
    if isinstance(response, Experience):
        values["response_length"] = response.sequence.response_length
        values["finish_reason"] = response.finish_reason
        response = response.response_text
    return {**values, "response": response}
