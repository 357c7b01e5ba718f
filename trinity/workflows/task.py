"""The input of a workflow: one row of a taskset with its settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from trinity.config.schema.data import FormatConfig
from trinity.data.conversations import (
    BadConversation,
    holds_messages,
    last_user_text,
    media_column,
    parse_messages,
    parse_tools,
)
from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.rewards.reward import BoundReward
from trinity.types import JsonObject, JsonValue
from trinity.user_code.columns import column_names, column_value, has_column, optional_column

EXACT_INTEGERS = float(1 << 53)
"""Larger floating-point numbers are not exact."""


def truth_of(row: JsonObject, key: str) -> JsonValue:
    """Returns the truth at a column or path, None if there is none; a whole number is an integer.

    Columns of numbers are read as 117.0 as soon as one of their rows is null.
    """
    value = optional_column(row, key)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_INTEGERS:
        return int(value)
    return value


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

    def __post_init__(self) -> None:
        """Lets the reward take from this task what its calls leave out."""
        if self.reward is not None:
            self.reward.for_task(self)

    @property
    def task_desc(self) -> str:
        """The prompt column; of a list of messages, what the user says last."""
        if self._has_messages:
            return last_user_text(self.prompt_messages)
        key = self.format.prompt_key
        text = self._text(key, self.column(key))
        self._refuse_media(text)
        return text

    @property
    def prompt_messages(self) -> Sequence[JsonObject]:
        """The messages of the prompt column; empty if it holds a text.

        Raises: UserError for what is not a list of messages with text.
        """
        if not self._has_messages:
            return []
        key = self.format.prompt_key
        try:
            messages = parse_messages(self.column(key))
        except BadConversation as error:
            raise UserError(f"{self._row}: column {key!r}: {error}") from error
        for message in messages:
            self._refuse_media(str(message["content"]))
        return messages

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The tools that a prompt of messages offers; most have none."""
        key = self.format.tools_key
        try:
            tools = optional_column(self.raw_task, key) if self._has_messages else None
            return parse_tools(tools)
        except BadConversation as error:
            raise UserError(f"{self._row}: column {key!r}: {error}") from error

    @property
    def truth(self) -> JsonValue:
        """The response column, None if the row has none; a whole number is an integer."""
        return truth_of(self.raw_task, self.format.response_key)

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
        if not has_column(self.raw_task, key):
            raise UserError(
                f"{self._row}: there is no column {key!r}; {self._columns}; "
                f"{self._setting_of(key) or 'add it to the rows'}"
            )
        return column_value(self.raw_task, key)

    def filled(self, key: str) -> JsonValue:
        """Returns the value of a required column that must not be null.

        Raises: UserError when it is missing or null.
        """
        value = self.column(key)
        if value is None:
            remedy = " or ".join(filter(None, ["correct the row", self._setting_of(key)]))
            raise UserError(f"{self._row}: column {key!r} is null; {self._columns}; {remedy}")
        return value

    @property
    def _has_messages(self) -> bool:
        return holds_messages(optional_column(self.raw_task, self.format.prompt_key))

    def _refuse_media(self, text: str) -> None:
        """Raises: UserError for a prompt about pictures of the row."""
        if column := media_column(text, self.raw_task):
            raise UserError(
                f"{self._row}: the prompt refers to column {column!r}, and prompts here are text "
                "alone: leave such rows out"
            )

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
        return f"taskset {self.taskset!r}, {row_name(self.index)}"

    @property
    def _columns(self) -> str:
        return f"its columns are {', '.join(column_names(self.raw_task))}"
