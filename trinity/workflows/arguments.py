"""The arguments of a workflow: what its taskset gives, over what is usual."""

from collections.abc import Mapping

from trinity.errors import UserError
from trinity.types import JsonValue
from trinity.workflows.workflow import Workflow


class Arguments:
    """Reads `workflow_args` by the types they must have; `usual_args` names all there are.

    arguments = Arguments(workflow)
    arguments.number("max_steps")
    """

    def __init__(self, workflow: Workflow) -> None:
        task = workflow.task
        self._given: Mapping[str, JsonValue] = {**workflow.usual_args, **task.workflow_args}
        self._where = f"taskset {task.taskset!r}: {type(workflow).__name__}: workflow_args"

    def number(self, name: str) -> float:
        """Any number."""
        value = self._given[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{self._where}.{name} is {value!r}, which is no number")
        return value

    def count(self, name: str) -> int:
        """A whole number from 1."""
        value = self._given[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self._where}.{name} is {value!r}: give a whole number from 1 on")
        return value

    def switch(self, name: str) -> bool:
        """True or false."""
        value = self._given[name]
        if not isinstance(value, bool):
            raise UserError(f"{self._where}.{name} is {value!r}: give true or false")
        return value

    def value(self, name: str) -> JsonValue:
        """Whatever was given."""
        return self._given[name]
