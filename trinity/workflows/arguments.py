"""The arguments of a workflow: those of its taskset, with the workflow's defaults."""

from collections.abc import Mapping

from trinity.errors import UserError
from trinity.types import JsonValue
from trinity.workflows.workflow import Workflow


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
