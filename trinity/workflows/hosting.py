"""Runs a workflow that may block, and converts the experiences that it returns.

    made = HostedRuns(inputs, model, auxiliary, runs=(0, 1)).make()   # blocks: call it in a thread
    made[0], made[1]                                                  # experiences by run

Experiences with the engine's answers keep its tokens; those that the workflow built are marked.
"""

import asyncio
import contextlib
import inspect
import logging
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trinity.errors import UserError
from trinity.plugins import REWARDS, value_at
from trinity.rewards.reward import BoundReward, OnBadReward, RewardFn, RewardSource
from trinity.rewards.score import as_reward
from trinity.types import Experience, JsonObject
from trinity.user_code.values import is_of_user
from trinity.workflows.model import ModelWrapper
from trinity.workflows.samples import further_samples, taken_over
from trinity.workflows.task import RewardParts, Task
from trinity.workflows.workflow import Workflow, check_are_distinct

logger = logging.getLogger(__name__)
_TENSORS = re.compile(r"\b(?:tokens|logprobs|action_mask|tensor|torch)\b")
MAX_IDLE = 64
"""Instances of a class that wait for a next task; upstream keeps one a runner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReward:
    """The reward of a taskset, before it is made."""

    source: RewardSource
    args: JsonObject
    name: str
    on_failure: OnBadReward = "fail"
    models: Sequence[ModelWrapper] = field(default=(), compare=False)
    """The auxiliary models, for rewards that ask one."""
    made: list[BoundReward] = field(default_factory=list, compare=False)
    """What the workflow made of it."""

    def create(self) -> BoundReward:
        """Makes the reward."""
        self.made.append(
            BoundReward(
                self.source,
                self.args,
                self.name,
                on_failure=self.on_failure,
                models=self.models,
            )
        )
        return self.made[-1]

    @property
    def was_called(self) -> bool | None:
        """True if a workflow called it; None if that cannot be known."""
        return any(own.was_called for own in self.made) if self.is_watched else None

    @property
    def is_watched(self) -> bool:
        """True if workflows get a class that wraps it."""
        return _class_as_it_is(self) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInputs:
    """Everything that a task is made of."""

    workflow: type[Workflow]
    task: Task
    reward: NamedReward | None
    num_runs: int = 1
    needs_reward: bool = True
    """False if the algorithm does not use rewards: a missing one is 0."""


def create_task(inputs: TaskInputs) -> Task:
    """Returns a task that the workflow may change without a change to any other."""
    task, reward = inputs.task.copied(), inputs.reward
    task.workflow, task.rollout_args.n = inputs.workflow, inputs.num_runs
    if reward is not None:
        task.reward_fn_args, task.make_reward = dict(reward.args), reward.create
        task.reward_fn = reward_class(reward, task.raw_task)
    return task


def reward_class(reward: NamedReward | None, row: JsonObject) -> type | None:
    """Returns the class that makes the taskset's reward, as workflows call it.

    A class written for Trinity-RFT is returned unchanged. A native reward is wrapped: it gets the
    parameters that it names, and other arguments of the workflow are dropped.
    """
    if reward is None:
        return None
    return _class_as_it_is(reward) or _adapted(reward, row)


def _class_as_it_is(reward: NamedReward) -> type | None:
    """Returns the class of a reward that was written for Trinity-RFT; None for others."""
    classes = value_at("trinity.rft.common.rewards.CLASSES")  # has all graders
    if reward.name in classes and not REWARDS.is_own(reward.name):
        known: type = classes[reward.name]
        return known
    source = reward.source
    if not (isinstance(source, type) and issubclass(source, RewardFn) and is_of_user(source)):
        return None
    return source if _takes_what_workflows_pass(source) else None


def _takes_what_workflows_pass(source: type[RewardFn]) -> bool:
    """True for a class with the call signature of Trinity-RFT's rewards."""
    parameters = list(inspect.signature(source.__call__).parameters.values())
    if any(own.kind is own.VAR_KEYWORD for own in parameters):
        return True
    names = [own.name for own in parameters[1:] if own.kind is not own.KEYWORD_ONLY]
    return names[:1] == ["response"] and not {"truth", "ground_truth"}.isdisjoint(names)


def _adapted(reward: NamedReward, row: JsonObject) -> type:
    """Returns a class that calls a native reward, or a function, in Trinity-RFT's way."""

    class Adapted(RewardFn):
        def __init__(self, /, **args: Any) -> None:
            self._bound = BoundReward(reward.source, args, reward.name, models=reward.models)
            reward.made.append(self._bound)

        def __call__(self, /, response: Any = None, *others: Any, **known: Any) -> RewardParts:
            if others:
                known.setdefault("messages", others[0])
            numbers = self._bound(**_values(response, {"task": row, **known}))
            score = RewardParts(self._bound.parts_of(numbers))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """A workflow with the models that it was made over."""

    workflow: Workflow
    model: ModelWrapper
    auxiliary: Sequence[ModelWrapper]
    reward: NamedReward | None
    """The reward that it was made with."""

    @property
    def is_reusable(self) -> bool:
        """True if it may serve another task: it holds no objects of an ended event loop."""
        models = (self.model, *self.auxiliary)
        return (
            self.workflow.resettable
            and not self.workflow.asynchronous
            and all(model.is_reusable for model in models)
        )


class IdleWorkflows:
    """Workflows with `can_reset` that have ended a task and wait for the next one.

    Only those that ended well come back: a thread that was given up may still use its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[type, str, int], list[Hosted]] = {}

    def take(self, inputs: TaskInputs) -> Hosted | None:
        """Returns a workflow that no other thread has, if there is one for such a task.

        It has made as many runs before: `reset` often leaves the task's settings as they were.
        """
        with self._lock:
            waiting = self._idle.get(_kind_of(inputs))
            return waiting.pop() if waiting else None

    def give_back(self, hosted: Hosted, inputs: TaskInputs) -> None:
        """Keeps a workflow for the next task of its taskset."""
        with self._lock:
            waiting = self._idle.setdefault(_kind_of(inputs), [])
            if len(waiting) < MAX_IDLE:
                waiting.append(hosted)


def _kind_of(inputs: TaskInputs) -> tuple[type, str, int]:
    return inputs.workflow, inputs.task.taskset, inputs.num_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedRuns:
    """The runs of one task that one call of a workflow makes."""

    inputs: TaskInputs
    model: ModelWrapper
    auxiliary_models: Sequence[ModelWrapper]
    runs: tuple[int, ...]
    idle: IdleWorkflows

    def make(self) -> dict[int, list[Experience]]:
        """Returns the experiences of each run; blocks.

        Raises: UserError when they cannot be told apart by run, and the workflow's errors.
        """
        hosted = self._hosted()
        workflow = hosted.workflow
        if type(workflow).can_repeat:
            workflow.set_repeat_times(len(self.runs), self.runs[0])
        first, own = hosted.reward, self.inputs.reward
        if first is not None and own is not None and first is not own:
            own.made.extend(first.made)
        made = asyncio.run(workflow.run_async()) if workflow.asynchronous else workflow.run()
        name = type(workflow).__name__
        by_run = self._by_run(name, _checked(made, name), hosted.model)
        if hosted.is_reusable:
            self.idle.give_back(hosted, self.inputs)
        return by_run

    def _hosted(self) -> Hosted:
        """Returns a workflow with the task: one that is idle, or a new one."""
        task = create_task(self.inputs)
        for model in (self.model, *self.auxiliary_models):
            model.keep_history()
        found = self.idle.take(self.inputs)
        if found is None:
            return self._new(self.inputs.workflow, task)
        found.model.bind(self.model)
        for wrapper, model in zip(found.auxiliary, self.auxiliary_models, strict=True):
            wrapper.bind(model)
        found.workflow.task = task
        try:
            found.workflow.reset(task)
        except Exception:  # the edge of the user's code: a task that only `__init__` can begin
            logger.info("a workflow cannot be reset and is made again", exc_info=True)
            return self._new(self.inputs.workflow, create_task(self.inputs))
        return found

    def _new(self, kind: Any, task: Task) -> Hosted:
        policy, auxiliary = self.model, list(self.auxiliary_models)
        given = {"auxiliary_models": auxiliary} if auxiliary or takes_auxiliary_models(kind) else {}
        workflow: Workflow = kind(task=task, model=policy, **given)
        if "model" not in vars(workflow):  # its constructor leaves that of the base out
            Workflow.__init__(workflow, task=task, model=policy, auxiliary_models=auxiliary)
        return Hosted(
            workflow=workflow, model=policy, auxiliary=auxiliary, reward=self.inputs.reward
        )

    def _by_run(
        self, name: str, made: list[Experience], model: ModelWrapper
    ) -> dict[int, list[Experience]]:
        taken: dict[int, list[Experience]] = {run: [] for run in self.runs}
        self._check_rewards(name, made)
        for experience, run in zip(made, self._places(name, made), strict=True):
            taken[run] += [taken_over(sample, model) for sample in further_samples([experience])]
        return taken

    def _check_rewards(self, name: str, made: list[Experience]) -> None:
        for experience in made:
            experience.reward = as_reward(experience.reward, name)
            if self.inputs.task.is_eval:
                continue
            if self.inputs.workflow.awaits_feedback:
                continue
            if experience.reward is None and self.inputs.needs_reward:
                raise UserError(
                    f"{name} returned an experience without a reward: set `experience.reward`, or "
                    "`awaits_feedback = True` for one that comes later"
                )
            experience.reward = experience.reward or 0.0

    def _places(self, name: str, made: list[Experience]) -> list[int]:
        """Returns the run of each experience: as it says, else in their order."""
        runs, size = self.runs, len(self.runs)
        named = [int(experience.eid.run) for experience in made]
        if size == 1:
            return list(runs) * len(made)
        says_nothing = set(named) in ({0}, {runs[0]})
        is_absolute = all(runs[0] <= run < runs[0] + size for run in named)
        relative = [run - runs[0] if is_absolute else run for run in named]
        if not says_nothing and all(0 <= run < size for run in relative):
            return [runs[run] for run in relative]
        if says_nothing and (len(made) % size == 0 or len(made) < size):
            each = max(len(made) // size, 1)
            return [runs[i // each] for i in range(len(made))]
        raise UserError(
            f"{name} returned {len(made)} experiences for {size} runs with the numbers "
            f"{sorted(set(named))} in `eid.run`: set it to `run_id_base` plus the run's number"
        )


def _checked(made: object, name: str) -> list[Experience]:
    """Returns the workflow's experiences; raises UserError for anything else."""
    if not isinstance(made, list | tuple) or not made:
        raise UserError(f"{name} returned no list of experiences, but {made!r:.60}")
    for experience in made:
        if not isinstance(experience, Experience):
            raise UserError(
                f"{name} returned {type(experience).__name__}, not an Experience of "
                "trinity.common.experience"
            )
        experience.check_fields()
    check_are_distinct(made, name)
    if len({str(experience.eid.task) for experience in made}) > 1:
        raise UserError(
            f"{name} returned experiences with several values of `eid.task`: all samples of a "
            "task are one group here, so leave `eid.task` as it is"
        )
    return list(made)


def preload_tensors(kind: type) -> None:
    """Imports torch, which takes seconds, before a run's time is measured.

    Only for user-defined classes with tensors in their source code.
    """
    try:
        texts = [inspect.getsource(base) for base in kind.__mro__[:-1] if is_of_user(base)]
    except (OSError, TypeError):  # there is no file
        return
    if any(map(_TENSORS.search, texts)):
        with contextlib.suppress(ImportError):
            import torch  # noqa: F401


def takes_auxiliary_models(kind: type) -> bool:
    """True for a constructor that has the argument; one may leave it out."""
    try:
        parameters = inspect.signature(kind).parameters
    except ValueError:  # a class written in C
        return False
    kinds = {own.kind for own in parameters.values()}
    return "auxiliary_models" in parameters or inspect.Parameter.VAR_KEYWORD in kinds
