"""Deferred construction of an attempt's workflow and its reward."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trinity.errors import UserError
from trinity.rewards.reward import Reward, RewardFn, RewardSource
from trinity.types import JsonObject
from trinity.workflows.model import ModelWrapper
from trinity.workflows.simple_workflow import REWARD_THREADS
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardMaking:
    """A reward to be constructed later."""

    source: RewardSource
    args: JsonObject
    name: str

    def make(self) -> Reward:
        """Constructs the reward; raises UserError for bad arguments, or its constructor's error."""
        return Reward(self.source, self.args, self.name)

    @property
    def may_wait(self) -> bool:
        """True if the constructor may take long: that of a class may, unless it says otherwise."""
        source = self.source
        if not isinstance(source, type):
            return False
        return source.in_thread if issubclass(source, RewardFn) else True


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A workflow to be constructed later; constructors of users may take as long as a run."""

    kind: type[Workflow]
    task: Task
    """The task without its reward."""
    reward: RewardMaking | None
    model: ModelWrapper
    auxiliary_models: Sequence[ModelWrapper]

    @property
    def blocks(self) -> bool:
        """True if it needs a thread; `is_async` as a property is read later, on the instance."""
        return inspect.getattr_static(self.kind, "is_async") is False

    def make(self) -> Workflow:
        """Constructs reward and workflow here, in a thread that may block."""
        return self._workflow(self.reward.make() if self.reward is not None else None)

    async def make_on_loop(self) -> Workflow:
        """Constructs the workflow here, and a reward that may take long in a reward thread."""
        if self.reward is None or not self.reward.may_wait:
            return self.make()
        return self._workflow(await REWARD_THREADS.run(self.reward.make))

    def _workflow(self, reward: Reward | None) -> Workflow:
        task = replace(self.task, reward=reward)
        if not self.auxiliary_models:  # workflows may leave the argument out
            return self.kind(task=task, model=self.model)
        return self.kind(task=task, model=self.model, auxiliary_models=self.auxiliary_models)


def kind_named(name: str, kind: object) -> type[Workflow]:
    """Returns `kind` as a workflow class; raises UserError if it is none."""
    if not (isinstance(kind, type) and issubclass(kind, Workflow)):
        raise UserError(f"the workflow {name!r} is not a subclass of trinity's Workflow")
    return kind
