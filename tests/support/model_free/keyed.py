"""A workflow and a reward that are given keys, and fail once with one of them in the text."""

from typing import ClassVar

from tests.support.model_free.reward import LettersReward
from trinity.types import Experience
from trinity.workflows.simple_workflow import SimpleWorkflow


class KeyedWorkflow(SimpleWorkflow):
    """Takes `api_key` and `database`, an address with a password."""

    known_args: ClassVar[frozenset[str] | None] = frozenset({"api_key", "database"})
    has_failed: ClassVar[bool] = False

    async def run_async(self) -> list[Experience]:
        """The first run of the process fails as a library would, repeating the address."""
        if not KeyedWorkflow.has_failed:
            KeyedWorkflow.has_failed = True
            raise ConnectionError(f"cannot reach {self.task.workflow_args['database']}")
        return await super().run_async()


class KeyedReward(LettersReward):
    """Takes a key."""

    def __init__(self, judge_api_key: str) -> None:
        self._key = judge_api_key
