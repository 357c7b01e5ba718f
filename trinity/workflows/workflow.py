"""The base of workflows, and their arguments."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from trinity.errors import UserError
from trinity.plugins import get_logger
from trinity.types import Experience, JsonValue
from trinity.workflows.model import ModelWrapper
from trinity.workflows.task import Task


class Workflow:
    """Runs of a task: calls the model and returns experiences with their rewards.

        class TwoTries(Workflow):
            def run(self) -> list[Experience]:
                tries = self.model.chat([{"role": "user", "content": self.task.question}], n=2)
                ...

    A subclass defines `run`, or `run_async`, with `is_async` if it has both. Each call has a
    process or a thread, and may block; `run_async` runs on a separate event loop there, unless the
    class sets `shares_loop`.

    `can_repeat`: one call makes all runs of a task. `set_repeat_times` says how many, and the
    number of the first; `eid.run` of an experience says which run it is of. `can_reset`: an
    instance serves one task after another, each begun with `reset`.

    `auxiliary_model_wrappers` are the auxiliary models in their order: they are called like
    `model`, and never trained. One that scores has `await wrapper.rate(messages)` and `rate_steps`.
    """

    can_reset: bool = False
    can_repeat: bool = False
    is_async: bool = False
    shares_loop: ClassVar[bool] = False
    """True for a class whose `run_async` never blocks: thousands of runs share the explorer's event
    loop. Subclasses inherit it."""
    known_args: ClassVar[frozenset[str] | None] = None
    """Names that `workflow_args` may have; None leaves them unchecked."""
    usual_args: ClassVar[Mapping[str, JsonValue]] = {}
    """Defaults of `workflow_args`; see `Arguments`."""
    awaits_feedback: ClassVar[bool] = False
    """True for a class that leaves rewards to `trinity feedback`."""
    keeps_history: ClassVar[bool] = False
    """True to record calls of the model, whatever the configuration says."""
    gives_several_samples: ClassVar[bool] = False
    """True if the number of a run's samples is not known before it; a train step is then an explore
    step, unless `buffer.train_step` says otherwise."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Sets `is_async` if a class defines only `run_async` and does not set it."""
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
        self.auxiliary_model_wrappers = list(auxiliary_models or [])
        self.repeat_times = 1
        self.run_id_base = 0
        self.logger = get_logger(type(self).__module__)
        """Its lines are in the log of the runner, `explorer_runner_<n>.log`."""
        self._check_args()
        if self.keeps_history:
            model.keep_history()

    @classmethod
    def is_on_loop(cls) -> bool:
        """True if its runs share the explorer's event loop; `is_async` as a property may not."""
        return cls.shares_loop and inspect.getattr_static(cls, "is_async") is True

    @property
    def auxiliary_models(self) -> Any:
        """OpenAI clients of `explorer.auxiliary_models`, asynchronous with `is_async`, or None; a
        model that scores has None in its place.
        """
        own = vars(self).get("_auxiliary_models")
        if own is not None or not self.auxiliary_model_wrappers:
            return own
        is_async = self.is_async
        self._auxiliary_models = [
            None
            if wrapper.scores
            else (wrapper.get_openai_async_client() if is_async else wrapper.get_openai_client())
            for wrapper in self.auxiliary_model_wrappers
        ]
        return self._auxiliary_models

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
        return self.is_async

    def reset(self, task: Task) -> None:
        """Prepares the instance for another task; needed with `can_reset`."""
        raise NotImplementedError(f"{type(self).__name__} has can_reset but no reset")

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        """Takes the number of runs of the next call; needed with `can_repeat`."""
        raise NotImplementedError(f"{type(self).__name__} has can_repeat but no set_repeat_times")

    # Subclasses define one of the two.
    def run(self) -> list[Experience]:
        """Makes the experiences."""
        raise NotImplementedError(f"{type(self).__name__} has neither run nor run_async")

    async def run_async(self) -> list[Experience]:
        """Makes the experiences."""
        raise NotImplementedError(f"{type(self).__name__} has is_async but no run_async")

    @classmethod
    def check_args(cls, names: Iterable[str]) -> None:
        """Raises: UserError for names that `workflow_args` may not have."""
        if cls.known_args is None:
            return
        if unknown := sorted(set(names) - cls.known_args):
            known = ", ".join(sorted(cls.known_args)) or "none"
            raise UserError(
                f"{cls.__name__} knows no workflow_args {', '.join(unknown)}; it knows {known}"
            )

    def _check_args(self) -> None:
        try:
            self.check_args(self.task.workflow_args)
        except UserError as error:
            raise UserError(f"taskset {self.task.taskset!r}: {error}") from error


class Arguments:
    """Reads and type-checks `workflow_args`; `usual_args` names all of them, with defaults.

    arguments = Arguments(workflow)
    arguments.number("max_steps")
    """

    def __init__(self, workflow: Workflow) -> None:
        task = workflow.task
        self._values: Mapping[str, JsonValue] = {**workflow.usual_args, **task.workflow_args}
        self._where = f"taskset {task.taskset!r}: {type(workflow).__name__}: workflow_args"

    def number(self, name: str) -> float:
        """Returns a number."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{self._where}.{name} is {value!r}, which is no number")
        return value

    def positive_int(self, name: str) -> int:
        """Returns a whole number from 1 on."""
        value = self._values[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self._where}.{name} is {value!r}: give a whole number from 1 on")
        return value

    def boolean(self, name: str) -> bool:
        """Returns true or false."""
        value = self._values[name]
        if not isinstance(value, bool):
            raise UserError(f"{self._where}.{name} is {value!r}: give true or false")
        return value

    def value(self, name: str) -> JsonValue:
        """Returns an unchecked value."""
        return self._values[name]


def check_are_distinct(made: Sequence[object], name: str) -> None:
    """Checks the experiences of a workflow, before they are copied.

    Raises: UserError for one object in two places: both would be trained in its last state.
    """
    places: dict[int, int] = {}
    for place, experience in enumerate(made, start=1):
        first = places.setdefault(id(experience), place)
        if first != place:
            raise UserError(
                f"{name} returned one experience as number {first} and number {place}, which would "
                "train it twice: leave one out, or return a `copy.deepcopy` of each as it was"
            )
