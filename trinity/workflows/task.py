"""The input of a workflow: one row of a taskset with settings that the workflow may change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from trinity.config.schema.data import FormatConfig
from trinity.data.conversations import (
    IMAGE,
    MEDIA_ADVICE,
    BadConversation,
    holds_messages,
    last_user_text,
    media_column,
    parse_messages,
    parse_tools,
    text_of_content,
)
from trinity.data.images import EncodedImage, opened, ref_of
from trinity.data.rows import row_name
from trinity.errors import UserError
from trinity.rewards.reward import BoundReward
from trinity.types import JsonObject, JsonValue
from trinity.user_code.columns import (
    column_names,
    column_value,
    has_column,
    optional_column,
    row_images,
)

if TYPE_CHECKING:
    from trinity.workflows.model import ModelWrapper

EXACT_INTEGERS = float(1 << 53)
"""Larger floating-point numbers are not exact."""


@dataclass
class GenerationConfig:
    """Sampling of one taskset; `n` is the number of runs that the workflow makes."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int = -1
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1


class RewardParts(dict[str, float]):
    """The parts of a reward; a workflow may sum them. `beside` has numbers outside the sum."""

    beside: Mapping[str, float] = {}


@dataclass(eq=False)
class Task(dict):  # type: ignore[type-arg]  # a dict, as Trinity-RFT's is
    """One row of a taskset with its settings."""

    workflow: Any = None
    repeat_times: int | None = None
    format_args: FormatConfig = field(default_factory=FormatConfig)
    """Meaning of the columns."""
    rollout_args: GenerationConfig = field(default_factory=GenerationConfig)
    workflow_args: dict[str, Any] = field(default_factory=dict)
    reward_fn_args: dict[str, Any] = field(default_factory=dict)
    is_eval: bool = False
    reward_fn: Any = None
    """The class of the taskset's reward, called with `reward_fn_args`; None without one."""
    raw_task: Any = field(default_factory=dict)
    """The row as it was read."""
    batch_id: int | str = ""
    """The explore step."""
    task_id: int | str = ""
    index: dict[str, Any] = field(default_factory=dict)
    """The `taskset`, and the `index` of the row in it, from 0."""
    source: str = ""
    """The taskset's path, absolute; empty for tasks that clients submit."""
    make_reward: Callable[[], BoundReward] | None = field(default=None, repr=False)
    """Makes the taskset's reward; None leaves the reward to the workflow."""

    @cached_property
    def reward(self) -> BoundReward | None:
        """The taskset's reward, which takes from this task what its calls leave out.

        numbers = await self.task.reward.score(response=answer.response_text)
        """
        reward = self.make_reward() if self.make_reward is not None else None
        if reward is not None:
            reward.for_task(self)
        return reward

    @property
    def taskset(self) -> str:
        """Name of the taskset."""
        return str(self.index.get("taskset", ""))

    @property
    def row(self) -> int:
        """Number of the row in its taskset, from 0."""
        return int(self.index.get("index", 0))

    @property
    def task_desc(self) -> Any:
        """The prompt, a text or a list of messages; None if it is missing."""
        return optional_column(self.raw_task or {}, self.format_args.prompt_key)

    @property
    def truth(self) -> Any:
        """The response column, or None; a whole number is an integer.

        Arrow turns integer columns with nulls into floats such as 117.0.
        """
        value = optional_column(self.raw_task or {}, self.format_args.response_key)
        if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_INTEGERS:
            return int(value)
        return value

    def to_dict(self) -> Any:
        """Returns the row."""
        return self.raw_task

    def to_workflow(
        self, model: "ModelWrapper", auxiliary_models: "list[ModelWrapper] | None" = None
    ) -> Any:
        """Returns the task's workflow over these models."""
        return self.workflow(task=self, model=model, auxiliary_models=auxiliary_models)

    @property
    def question(self) -> str:
        """The prompt as text; for a list of messages, the user's last message.

        Raises: UserError for a row without a prompt.
        """
        if messages := self.prompt_messages:
            return last_user_text(messages)
        key = self.format_args.prompt_key
        text = self._text(key, self.column(key))
        self._refuse_media(text)
        return text

    @property
    def prompt_messages(self) -> Sequence[JsonObject]:
        """The messages of the prompt, with the row's images; empty for a text without images.

        Raises: UserError if the column holds no messages, or others than the images are for.
        """
        key, images = self.format_args.prompt_key, self.images
        if not self._has_messages and not images:
            return []
        value = self.column(key)
        if not self._has_messages:
            value = [{"role": "user", "content": self._text(key, value)}]
        try:
            messages = parse_messages(value, images)
        except BadConversation as error:
            raise UserError(f"{self._row}: column {key!r}: {error}") from error
        for message in messages:
            self._refuse_media(text_of_content(message["content"]))
        return messages

    @property
    def images(self) -> list[JsonValue] | None:
        """The images of the row, as parts of messages; None if the taskset reads none."""
        found = row_images(self.raw_task or {}, self.format_args.image_key)
        if found is None:
            return None
        return [own if isinstance(own, dict) else {"type": IMAGE, IMAGE: own} for own in found]

    def show_images(self, contents: Mapping[bytes, bytes]) -> None:
        """Puts PIL images in the row's column of images, for users' code; contents are by hash."""
        key = self.format_args.image_key
        refs = [ref for ref in map(ref_of, row_images(self.raw_task, key) or ()) if ref is not None]
        if refs and contents:
            images = [opened(EncodedImage(contents[ref.sha256], ref)) for ref in refs]
            self.raw_task = {**self.raw_task, key: images}

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The tools of the prompt; usually empty."""
        key = self.format_args.tools_key
        try:
            tools = optional_column(self.raw_task, key) if self._has_messages else None
            return parse_tools(tools)
        except BadConversation as error:
            raise UserError(f"{self._row}: column {key!r}: {error}") from error

    @property
    def system_prompt(self) -> str | None:
        """The row's own system prompt, else the taskset's."""
        key = self.format_args.system_prompt_key
        own = self.column(key) if key else None
        return self.format_args.system_prompt if own in (None, "") else self._text(key, own)

    def demand_truth(self) -> None:
        """Checks that there is a truth, unless the format declares tasks without truths.

        Raises: UserError when the row's truth is missing or null.
        """
        if self.format_args.response_key:
            self.filled(self.format_args.response_key)

    def column(self, key: str) -> JsonValue:
        """Returns the value of a required column.

        Raises: UserError naming the columns that the row has.
        """
        if not has_column(self.raw_task, key):
            raise UserError(
                f"{self._row}: there is no column {key!r}; {self._columns}; "
                f"{self._setting_of(key) or 'add it to the rows'}"
            )
        value: JsonValue = column_value(self.raw_task, key)
        return value

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
        return holds_messages(optional_column(self.raw_task, self.format_args.prompt_key))

    def _refuse_media(self, text: str) -> None:
        """Raises: UserError for a prompt about pictures of the row."""
        if column := media_column(text, self.raw_task):
            raise UserError(
                f"{self._row}: the prompt refers to column {column!r}: {MEDIA_ADVICE[column]}"
            )

    def _text(self, key: str | None, value: JsonValue) -> str:
        if value is None or isinstance(value, list | dict):
            kind = "null" if value is None else f"a {type(value).__name__}"
            raise UserError(f"{self._row}: column {key!r} is {kind}, no text")
        return str(value)

    def _setting_of(self, column: str) -> str:
        """Returns advice on the setting that selects this column, or an empty text."""
        form = self.format_args
        named = {
            "prompt_key": form.prompt_key,
            "response_key": form.response_key,
            "system_prompt_key": form.system_prompt_key,
        }
        return next((f"set `format.{key}`" for key, name in named.items() if name == column), "")

    @property
    def _row(self) -> str:
        return f"taskset {self.taskset!r}, {row_name(self.row)}"

    @property
    def _columns(self) -> str:
        return f"its columns are {', '.join(column_names(self.raw_task))}"

    def copied(self) -> "Task":
        """Returns a task that a workflow may change without a change to this one."""
        return replace(
            self,
            format_args=self.format_args.model_copy(),
            rollout_args=replace(self.rollout_args),
            workflow_args=dict(self.workflow_args),
            reward_fn_args=dict(self.reward_fn_args),
            index=dict(self.index),
        )


def task_to_json(task: Task) -> dict[str, Any]:
    """Returns a task that no workflow has, for another process: without workflow and reward."""
    return {
        "repeat_times": task.repeat_times,
        "format_args": task.format_args.model_dump(mode="json"),
        "rollout_args": asdict(task.rollout_args),
        "workflow_args": task.workflow_args,
        "is_eval": task.is_eval,
        "raw_task": task.raw_task,
        "batch_id": task.batch_id,
        "task_id": task.task_id,
        "index": task.index,
        "source": task.source,
    }


def task_from_json(values: Mapping[str, Any]) -> Task:
    """Returns the task of `task_to_json`."""
    return Task(
        **{
            **values,
            "format_args": FormatConfig.model_validate(values["format_args"]),
            "rollout_args": GenerationConfig(**values["rollout_args"]),
        }
    )
