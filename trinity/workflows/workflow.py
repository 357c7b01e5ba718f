"""The base of workflows."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from trinity.errors import UserError
from trinity.plugins import get_logger
from trinity.types import Experience, JsonValue
from trinity.workflows.model import ModelWrapper
from trinity.workflows.task import Task

if TYPE_CHECKING:
    import openai


class Workflow:
    """One run of one task: calls the model and returns experiences with their rewards.

        class TwoTries(Workflow):
            is_async = True

            async def run_async(self) -> list[Experience]:
                tries = await self.model.chat_async(self.messages(), n=2)
                ...

    A workflow with `is_async` runs on the service's event loop and must not block; any other
    defines `run` and gets a thread. A thread cannot be stopped: once the attempt is over, its calls
    of the model raise AttemptOver. An instance serves one run and is never reused.

    `auxiliary_model_wrappers` are the auxiliary models in their order: they are called like
    `model`, and never trained.
    """

    is_async: ClassVar[bool] = False
    known_args: ClassVar[frozenset[str] | None] = None
    """Names that `workflow_args` may have; None leaves them unchecked."""
    usual_args: ClassVar[Mapping[str, JsonValue]] = {}
    """Defaults of `workflow_args`; see `Arguments`."""
    gives_several_samples: ClassVar[bool] = False
    """True if the number of a run's samples is not known before it; a train step is then an explore
    step, unless `buffer.train_step` says otherwise."""
    keeps_history: ClassVar[bool] = False
    """True to record calls of the model, whatever the configuration says."""

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: Sequence[ModelWrapper] | None = None,
    ) -> None:
        self.task = task
        self.model = model
        self.logger = get_logger(type(self).__module__)
        """Its lines are in the log of the runner, `explorer_runner_<n>.log`."""
        self.auxiliary_model_wrappers = list(auxiliary_models or [])
        self._check_args()
        if self.keeps_history:
            model.keep_history()

    @cached_property
    def auxiliary_models(self) -> "list[openai.OpenAI] | list[openai.AsyncOpenAI]":
        """OpenAI clients of `explorer.auxiliary_models`; asynchronous with `is_async`.

        Raises: UserError when the package `openai` is missing.
        """
        wrappers = self.auxiliary_model_wrappers
        if self.is_async:
            return [wrapper.get_openai_async_client() for wrapper in wrappers]
        return [wrapper.get_openai_client() for wrapper in wrappers]

    # Subclasses define one of the two.
    def run(self) -> list[Experience]:
        """Makes the experiences of this run; called in a thread."""
        raise NotImplementedError(f"{type(self).__name__} has neither run nor run_async")

    async def run_async(self) -> list[Experience]:
        """Makes the experiences of this run; called on the event loop."""
        raise NotImplementedError(f"{type(self).__name__} has is_async but no run_async")

    def _check_args(self) -> None:
        if self.known_args is None:
            return
        if unknown := sorted(self.task.workflow_args.keys() - self.known_args):
            known = ", ".join(sorted(self.known_args)) or "none"
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} knows no workflow_args "
                f"{', '.join(unknown)}; it knows {known}"
            )


def check_are_distinct(made: Sequence[object], name: str) -> None:
    """Checks what a workflow returned, before it is copied.

    Raises: UserError for one object in two places, which would be trained twice as it was last.
    """
    places: dict[int, int] = {}
    for place, experience in enumerate(made, start=1):
        first = places.setdefault(id(experience), place)
        if first != place:
            raise UserError(
                f"{name} returned one experience as number {first} and number {place}, which would "
                "train it twice: leave one out, or return a `copy.deepcopy` of each as it was"
            )
