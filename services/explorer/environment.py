"""Environment variables of a stage's workflows, restored when it is over."""

import os
from collections.abc import Mapping


class WorkflowEnvironment:
    """Overlays a stage's variables on the environment in which the process was started."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set(self, variables: Mapping[str, str | bool | int | float]) -> None:
        """Sets the variables, after undoing those of the previous call."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update({name: str(value) for name, value in variables.items()})
