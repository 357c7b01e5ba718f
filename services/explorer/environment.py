"""Environment variables of a stage's workflows, put back when it is over."""

import os
from collections.abc import Mapping


class WorkflowEnvironment:
    """What a stage gives lies over the environment that the process was started in."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set(self, variables: Mapping[str, str | bool | int | float]) -> None:
        """Those of another stage are taken back first."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update({name: str(value) for name, value in variables.items()})
