"""What a workflow is given: one row of a taskset and how to treat it."""

from dataclasses import dataclass, field

from trinity.config.data_format import FormatConfig
from trinity.errors import UserError
from trinity.rewards.reward import Reward
from trinity.types import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of a taskset."""

    raw_task: JsonObject
    """The row as it was read."""
    format: FormatConfig = field(default_factory=FormatConfig)
    """Which column means what."""
    taskset: str = ""
    index: int = 0
    """Row of the task in its taskset, from 0."""
    is_eval: bool = False
    workflow_args: JsonObject = field(default_factory=dict)
    reward: Reward | None = None
    """None leaves the reward to the workflow."""

    @property
    def task_desc(self) -> str:
        """The prompt column."""
        key = self.format.prompt_key
        value = self.column(key)
        if value is None or isinstance(value, list | dict):
            kind = "null" if value is None else f"a {type(value).__name__}"
            raise UserError(
                f"taskset {self.taskset!r}, row {self.index}: column {key!r} is {kind}, no text"
            )
        return str(value)

    @property
    def truth(self) -> JsonValue:
        """The response column; None where the row has none."""
        return self.raw_task.get(self.format.response_key)

    @property
    def system_prompt(self) -> str | None:
        """The row's own system prompt, else the taskset's."""
        key = self.format.system_prompt_key
        return str(self.column(key)) if key else self.format.system_prompt

    def column(self, key: str) -> JsonValue:
        """The value of a column that must be there.

        Raises: UserError naming the columns that are there instead.
        """
        if key not in self.raw_task:
            raise UserError(
                f"taskset {self.taskset!r}, row {self.index}: there is no column {key!r}; "
                f"its columns are {', '.join(self.raw_task)}; set format.prompt_key"
            )
        return self.raw_task[key]
