"""Rows of tasksets on their way in, events of a stage, and filters of samples."""

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Self

from services.buffer.domain.evaluation import MetricSummary
from services.buffer.domain.stage import AssignmentKind, ExperienceState, TasksetKind
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.schema.data import FormatConfig
from trinity.config.training_rows import (
    RowCheck,
    label_of,
    read_cpt_row,
    read_dpo_row,
    read_kto_row,
    read_sft_row,
)
from trinity.errors import UserError
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline
from trinity.runtime.rpc.bounds import clip_text
from trinity.types import JsonObject

MAX_ROW_BYTES = 3 * 1024 * 1024
"""A row is sent to an explorer in a single message."""
MAX_SAMPLE_BYTES = 256 * 1024
"""Limit of a text that an event shows."""
MAX_LISTED_REFUSALS = 1_000
CHUNK_ROWS = 500
CHUNK_LENGTH = 1024 * 1024
"""While a chunk is inserted into the database, memory holds it several times."""


def row_error(row_json: str) -> str:
    """Returns the error in a row; empty if the row is valid."""
    num_bytes = len(row_json) if row_json.isascii() else len(row_json.encode(errors="replace"))
    if num_bytes > MAX_ROW_BYTES:
        return f"it has {num_bytes:,} bytes, a row may have {MAX_ROW_BYTES:,}"
    try:
        row = json.loads(row_json, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return "" if isinstance(row, dict) else "a row must be a JSON object"


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:60]} is larger than any number may be")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that was refused."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Accepted rows of one request that are stored together."""

    first: int
    """Number of accepted rows before them."""
    bodies: Sequence[str]
    media: Collection[bytes]
    """Hashes of their images."""


@dataclass(slots=True)
class RowBuffer:
    """The rows of one request; refused rows leave no gap in the numbers of accepted ones.

    row_buffer.add_row('{"prompt": "1+1="}')
    if row_buffer.is_chunk:
        chunk = row_buffer.take_chunk()
    """

    num_seen: int = 0
    num_taken: int = 0
    num_refused: int = 0
    refused: list[RefusedRow] = field(default_factory=list)
    """The first `MAX_LISTED_REFUSALS` refused rows."""
    stored_media: set[bytes] = field(default_factory=set)
    """Hashes of the images that this request has stored."""
    _media: set[bytes] = field(default_factory=set)
    _waiting: list[str] = field(default_factory=list)
    _waiting_length: int = 0

    @property
    def is_chunk(self) -> bool:
        """True if enough rows wait to be stored as a chunk."""
        return len(self._waiting) >= CHUNK_ROWS or self._waiting_length >= CHUNK_LENGTH

    def add_row(self, row_json: str, reason: str = "", media: Collection[bytes] = ()) -> None:
        """Accepts a row with its images, or records why it is refused."""
        if reason := reason or row_error(row_json):
            self.num_refused += 1
            if len(self.refused) < MAX_LISTED_REFUSALS:
                self.refused.append(RefusedRow(index=self.num_seen, reason=reason))
        else:
            self._waiting.append(row_json)
            self._waiting_length += len(row_json)
            self._media.update(media)
        self.num_seen += 1

    def take_chunk(self) -> RowChunk:
        """Removes and returns the waiting rows."""
        chunk = RowChunk(self.num_taken, self._waiting, self._media)
        self.num_taken += len(chunk.bodies)
        self._waiting, self._waiting_length, self._media = [], 0, set()
        return chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOpened:
    """A stage was opened."""

    total_train_steps: int
    total_explore_steps: int
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchComposed:
    """A batch was composed."""

    step: int
    num_rows: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrained:
    """A step was trained; `replayed` if an earlier incarnation had already trained it."""

    step: int
    incarnation: int
    metrics: dict[str, float]
    replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDone:
    """An evaluation is complete."""

    version: int
    taskset: str
    num_tasks: int
    num_failed: int
    num_runs: int
    failed_count_zero: bool
    metrics: list[MetricSummary]
    num_metrics_left_out: int
    duration_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleText:
    """One sample as text."""

    prompt: str
    response: str
    reward: float | None

    @classmethod
    def clipped(cls, prompt: str, response: str, reward: float | None) -> Self:
        """Returns the beginnings of texts: an event is for people, and one of many in an answer."""
        return cls(prompt=_beginning(prompt), response=_beginning(response), reward=reward)


def _beginning(text: str) -> str:
    beginning = clip_text(text, MAX_SAMPLE_BYTES)
    left_out = len(text) - len(beginning)
    return f"{beginning} ... ({left_out:,} more characters)" if left_out else text


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesEvent:
    """Samples to show to people."""

    samples: list[SampleText]
    experience_ids: list[str]
    """The experiences that the samples come from; empty for training data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeEvent:
    """A message for people."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingChange:
    """One setting that a stage goes on with and that was another one before."""

    key: str
    before: str
    now: str
    from_step: int
    """The first train step that it holds for."""
    only_rounds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged:
    """A stage goes on with other settings; its recorded batches stay as they are."""

    changes: list[SettingChange]
    num_left_out: int = 0


Event = (
    StageOpened
    | BatchComposed
    | StepTrained
    | EvaluationDone
    | SamplesEvent
    | NoticeEvent
    | SettingsChanged
)
KINDS: dict[type[Event], str] = {
    StageOpened: "opened",
    BatchComposed: "batch",
    StepTrained: "step",
    EvaluationDone: "evaluation",
    SamplesEvent: "samples",
    NoticeEvent: "notice",
    SettingsChanged: "changed",
}


def data_sample(row_json: str, form: FormatConfig, schema: RowSchema) -> SampleText:
    """Returns prompt and response of a data row; the last of its messages is the response.

    A row in another format is shown unchanged; the trainer reports its error.
    """
    try:
        prompt, response = _parts(json.loads(row_json), form, schema)
    except (ValueError, RecursionError, UserError):  # RecursionError: nested too deeply
        prompt, response = row_json, ""
    return SampleText.clipped(sanitize_text(prompt), sanitize_text(response), None)


def _parts(row: JsonObject, form: FormatConfig, schema: RowSchema) -> tuple[str, str]:
    """Splits a row into prompt and response; of a pair, both answers are the response.

    Raises: UserError when the row lacks something, ValueError when it has no columns.
    """
    if not isinstance(row, dict):
        raise ValueError("not a row")
    if schema == "cpt":
        return "", read_cpt_row(row, form, "row")
    if schema == "dpo":
        read = read_dpo_row(row, form, "row")
        chosen, rejected = (_texts(answer) for answer in read.answers)
        return _texts(read.prompt), f"chosen: {chosen}\nrejected: {rejected}"
    if schema == "kto":
        read, label = read_kto_row(row, form, "row"), label_of(row, form, "row")
        return _texts(read.prompt), f"{'good' if label else 'bad'}: {_texts(read.answers[0])}"
    read = read_sft_row(row, form, "row")
    return _texts(read.prompt), _texts(read.answers[0])


def _texts(messages: Sequence[JsonObject]) -> str:
    return "\n".join(_text(message) for message in messages)


def _text(message: JsonObject) -> str:
    """Returns a message's text; one without text that calls tools is shown by its calls."""
    content = message.get("content")
    if isinstance(content, str) and content:
        return content
    return json.dumps(message.get("tool_calls", content), ensure_ascii=False)


def sanitize_text(text: str) -> str:
    """Replaces characters that the database cannot store: null characters, lone surrogates."""
    return text.encode(errors="replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """Conditions that must all hold; None and empty values match everything."""

    kind: AssignmentKind = AssignmentKind.TRAIN
    states: Sequence[ExperienceState] = ()
    """Empty for all but DERIVED, because a revision replaces each of those."""
    reward_min: float | None = None
    reward_max: float | None = None
    version_min: int | None = None
    version_max: int | None = None
    taskset: str = ""
    task_index: int | None = None
    explore_step: int | None = None
    train_step: int | None = None
    train_step_last: int | None = None
    """The last of the train steps from `train_step` on; None for that one alone."""
    text: str = ""
    experience_ids: Sequence[str] = ()
    finish_reason: str = ""

    @property
    def is_empty(self) -> bool:
        """True if everything of its kind passes."""
        return self == SampleFilter(kind=self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCursor:
    """Position of a sample in the listing order."""

    explore_step: int
    position: int
    run: int
    step: int
    suffix: str
    revision: int
    experience_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededTaskset:
    """A taskset that a plan uses."""

    name: str
    kind: TasksetKind
    path: str | None
    """None for tasks that a client submits under this name."""
    split: str
    subset_name: str | None
    table: str | None = None
    """Table of a database."""
    is_queue: bool = False
    is_of_clients: bool = False
    """True for a queue that the buffer makes itself, for calls that clients commit."""
    feature_keys: tuple[str, ...] = ()
    pipeline: ResolvedTaskPipeline | None = None
    """Processing of its rows before any of them is drawn."""
    row_check: RowCheck | None = None
    """The check of rows of training data, if there is one."""
    image_key: str | None = None
    """Column of images, if rows have any."""
