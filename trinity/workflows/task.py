"""The input of a workflow: one row of a taskset with its settings."""

from dataclasses import dataclass, field

from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.rewards.reward import BoundReward
from trinity.types import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One row of a taskset."""

    raw_task: JsonObject
    """The row as it was read."""
    format: FormatConfig = field(default_factory=FormatConfig)
    """Meaning of the columns."""
    taskset: str = ""
    index: int = 0
    """Row of the task in its taskset, from 0."""
    is_eval: bool = False
    workflow_args: JsonObject = field(default_factory=dict)
    reward: BoundReward | None = None
    """None leaves the reward to the workflow."""

    @property
    def task_desc(self) -> str:
        """The prompt column."""
        key = self.format.prompt_key
        return self._text(key, self.column(key))

    @property
    def truth(self) -> JsonValue:
        """The response column; None if the row has none."""
        return self.raw_task.get(self.format.response_key)

    @property
    def system_prompt(self) -> str | None:
        """The row's own system prompt, else the taskset's."""
        key = self.format.system_prompt_key
        own = self.column(key) if key else None
        return self.format.system_prompt if own in (None, "") else self._text(key, own)

    def demand_truth(self) -> None:
        """Checks that there is a truth, unless the format says that tasks have none.

        Raises: UserError when the row's truth is missing or null.
        """
        if self.format.response_key:
            self.filled(self.format.response_key)

    def column(self, key: str) -> JsonValue:
        """Returns the value of a required column.

        Raises: UserError naming the columns that the row has.
        """
        if key not in self.raw_task:
            raise UserError(
                f"{self._row}: there is no column {key!r}; {self._columns}; "
                f"{self._setting_of(key) or 'add it to the rows'}"
            )
        return self.raw_task[key]

    def filled(self, key: str) -> JsonValue:
        """Returns the value of a required column that must not be null.

        Raises: UserError when it is missing or null.
        """
        value = self.column(key)
        if value is None:
            remedy = " or ".join(filter(None, ["correct the row", self._setting_of(key)]))
            raise UserError(f"{self._row}: column {key!r} is null; {self._columns}; {remedy}")
        return value

    def _text(self, key: str | None, value: JsonValue) -> str:
        if value is None or isinstance(value, list | dict):
            kind = "null" if value is None else f"a {type(value).__name__}"
            raise UserError(f"{self._row}: column {key!r} is {kind}, no text")
        return str(value)

    def _setting_of(self, column: str) -> str:
        """Returns advice on the setting that selects this column; empty if there is none."""
        form = self.format
        named = {
            "prompt_key": form.prompt_key,
            "response_key": form.response_key,
            "system_prompt_key": form.system_prompt_key,
        }
        return next((f"set `format.{key}`" for key, name in named.items() if name == column), "")

    @property
    def _row(self) -> str:
        return f"taskset {self.taskset!r}, row {self.index}"

    @property
    def _columns(self) -> str:
        return f"its columns are {', '.join(self.raw_task)}"
