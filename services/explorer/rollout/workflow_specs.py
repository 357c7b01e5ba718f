"""Workflows to be constructed and run later: on the event loop, in a thread."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Protocol

from services.explorer.rollout.isolated_workflows import IsolatedReward
from trinity.isolation.values import PartRef
from trinity.rewards.reward import (
    REWARD_POOL,
    BoundReward,
    OnBadReward,
    RewardFn,
    RewardSource,
)
from trinity.runtime.threads import DaemonThreads
from trinity.types import Experience, JsonObject
from trinity.workflows.model import ModelWrapper
from trinity.workflows.task import Task
from trinity.workflows.trinity_rft.hosting import HostedRuns
from trinity.workflows.trinity_rft.task import NamedReward
from trinity.workflows.workflow import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    """A reward to be constructed later."""

    source: RewardSource
    args: JsonObject
    name: str
    on_failure: OnBadReward = "fail"
    isolated: IsolatedReward | None = None
    """The reward as it is called in a process that can be killed; None for one that runs here."""

    @property
    def named(self) -> NamedReward:
        """The reward for a workflow that makes it by itself."""
        return NamedReward(source=self.source, args=self.args, name=self.name)

    def to_json(self) -> JsonObject:
        """Returns the reward for a workflow in another process."""
        reference = asdict(PartRef.of(self.name, self.source))
        return {"part": reference, "args": self.args, "on_failure": self.on_failure}

    def create_reward(self) -> BoundReward:
        """Constructs the reward; raises UserError for bad arguments, or its constructor's error."""
        return BoundReward(
            self.source,
            self.args,
            self.name,
            on_failure=self.on_failure,
            elsewhere=self.isolated,
        )

    @property
    def may_block(self) -> bool:
        """True if the constructor may take long: that of a class may, unless it says otherwise."""
        source = self.source
        if not isinstance(source, type) or self.isolated is not None:
            return False
        return source.in_thread if issubclass(source, RewardFn) else True


Made = Mapping[int, Sequence[Experience]]
"""Experiences by run."""


class WorkflowSpec(Protocol):
    """A workflow to be constructed and run later, for one run or several of the same task."""

    @property
    def name(self) -> str:
        """Name of the workflow's class."""
        ...

    @property
    def needs_thread(self) -> bool:
        """True if it is made and run in a thread."""
        ...

    @property
    def models(self) -> Sequence[ModelWrapper]:
        """The models to close when it is over."""
        ...

    @property
    def stuck_at(self) -> str:
        """Names what ran elsewhere when it was given up; empty if nothing did."""
        ...

    def run_in_thread(self) -> Made:
        """Makes and runs it here; it may block."""
        ...

    async def run_on_loop(self, threads: DaemonThreads) -> Made:
        """Makes and runs it on the event loop, or in a thread if it turns out to block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSpec:
    """A workflow of ours; constructors of users may take as long as a run."""

    workflow_class: type[Workflow]
    task: Task
    """The task without its reward."""
    reward: RewardSpec | None
    model: ModelWrapper
    auxiliary_models: Sequence[ModelWrapper]
    run: int

    @property
    def name(self) -> str:
        """Name of the workflow's class."""
        return self.workflow_class.__name__

    @property
    def models(self) -> Sequence[ModelWrapper]:
        """The models to close when it is over."""
        return (self.model, *self.auxiliary_models)

    @property
    def stuck_at(self) -> str:
        """Names what ran elsewhere when it was given up; empty if nothing did."""
        isolated = self.reward.isolated if self.reward is not None else None
        return isolated.stuck_at if isolated is not None else ""

    @property
    def needs_thread(self) -> bool:
        """True if it needs a thread; `is_async` as a property is read later, on the instance."""
        return inspect.getattr_static(self.workflow_class, "is_async") is False

    def run_in_thread(self) -> Made:
        """Makes and runs it here; it may block."""
        return {self.run: self.create_workflow().run()}

    async def run_on_loop(self, threads: DaemonThreads) -> Made:
        """Makes it on the event loop and runs it as the instance says."""
        workflow = await self.create_on_loop()
        if not workflow.is_async:  # a property may decide this per instance
            return {self.run: await threads.run_in_thread(workflow.run)}
        return {self.run: await workflow.run_async()}

    def create_workflow(self) -> Workflow:
        """Constructs reward and workflow here, in a thread that may block."""
        return self._workflow(self.reward.create_reward() if self.reward is not None else None)

    async def create_on_loop(self) -> Workflow:
        """Constructs the workflow here, and a reward that may take long in a reward thread."""
        if self.reward is None or not self.reward.may_block:
            return self.create_workflow()
        return self._workflow(await REWARD_POOL.run_in_thread(self.reward.create_reward))

    def _workflow(self, reward: BoundReward | None) -> Workflow:
        task = replace(self.task, reward=reward)
        if not self.auxiliary_models:  # workflows may leave the argument out
            return self.workflow_class(task=task, model=self.model)
        return self.workflow_class(
            task=task, model=self.model, auxiliary_models=self.auxiliary_models
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSpec:
    """A workflow that was written for Trinity-RFT; it always has a thread, and may block."""

    hosted: HostedRuns
    needs_thread: ClassVar[bool] = True
    stuck_at: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """Name of the workflow's class."""
        return self.hosted.inputs.workflow.__name__

    @property
    def models(self) -> Sequence[ModelWrapper]:
        """The models to close when it is over."""
        return (self.hosted.model, *self.hosted.auxiliary_models)

    def run_in_thread(self) -> Made:
        """Makes and runs it here; it may block."""
        return self.hosted.make()

    async def run_on_loop(self, threads: DaemonThreads) -> Made:
        """Makes and runs it in a thread."""
        return await threads.run_in_thread(self.hosted.make)
