"""Subsection `buffer.trainer_input.experience_buffer`: where the trainer's rows come from."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from trinity.config.data_format import DataSelectorConfig, FormatConfig
from trinity.config.reasons import DERIVED, IN_DATABASE, NO_RAY
from trinity.config.replay import ReplayBufferConfig
from trinity.config.section import Args, Positive, Section, usual
from trinity.config.status import NoEffect, Renamed
from trinity.config.taskset import DataName

_PART = "[A-Za-z0-9][A-Za-z0-9._-]*"
RunName = Annotated[str, StringConstraints(pattern=f"^{_PART}(/{_PART}){{0,2}}$")]
"""Project, group and name of a run; a name alone is one of the same project and group."""


class ExperienceBufferConfig(Section):
    """The explorer's experiences, or rows of a file."""

    old_names: ClassVar[Mapping[str, Renamed]] = {
        "use_priority_queue": Renamed("replay_buffer.enable"),
        "reuse_cooldown_time": Renamed("replay_buffer.reuse_cooldown_time"),
    }

    name: DataName = "experience_buffer"
    """Its name in logs and metrics."""
    storage_type: Literal["queue", "file", "sql"] | None = None
    """What the explorer makes (mode both), or rows of a file or a database's table (mode train);
    else as the mode has it."""
    path: str | None = None
    """For `file`: a jsonl, json, csv, parquet or arrow file, a directory of such, or a dataset on
    the Hugging Face hub (`owner/name`). For `sql`: a database's address."""
    table: str | None = None
    """For `sql`: the table, unless it has the buffer's name."""
    source_run: RunName | None = None
    """For mode train: the run whose stored experiences are trained on, by `project/name` or
    `project/group/name`; a name alone is one of the same project and group. It is not touched."""
    source_stage: DataName = ""
    """Its stage that explored; else the last one that did."""
    split: str = "train"
    """Which split of a directory."""
    subset_name: str | None = None
    """Which subset (a subdirectory) of a directory."""
    format: FormatConfig = usual(FormatConfig)
    """Columns of a row, by their meaning."""
    data_selector: DataSelectorConfig = usual(DataSelectorConfig)
    """The order in which rows are drawn."""
    max_read_timeout: float = Field(default=1800.0, gt=0)
    """Seconds the trainer waits for a batch before it gives up. If `buffer.await_feedback` is set
    and this is not, `buffer.feedback_timeout`, or else 30 days, are added to the default."""
    replay_buffer: ReplayBufferConfig = usual(ReplayBufferConfig)
    """Experiences that are trained more than once."""
    replay_buffer_kwargs: Args = Field(default_factory=dict)
    """Its `priority_fn` with that function's arguments beside it, as old releases have them."""
    capacity: Positive = 10000
    """Most rows that a replay buffer holds; without one, credit limits the waiting rows."""
    max_retry_times: Annotated[int, IN_DATABASE] = 3
    """Further attempts at reading a database."""
    max_retry_interval: Annotated[int, IN_DATABASE] = 1
    """Seconds between them."""
    enable_progress_bar: Annotated[bool, NoEffect("a run shows its own progress")] = False
    """Show how much of a file was read."""
    schema_type: Annotated[str | None, DERIVED] = None
    """What the rows are."""
    index: Annotated[int, NoEffect("the buffer remembers how far a run came")] = 0
    """Rows to leave out at the beginning."""
    batch_size: Annotated[int, DERIVED] = 0
    """Rows of a step."""
    tokenizer_path: Annotated[str | None, DERIVED] = None
    """The model whose tokenizer is used."""
    total_epochs: Annotated[int, DERIVED] = 1
    """Passes over the rows."""
    total_steps: Annotated[int | None, DERIVED] = None
    """Train steps."""
    ray_namespace: Annotated[str | None, NO_RAY] = None
    """Ray's name for the run."""
    wrap_in_ray: Annotated[bool, NO_RAY] = True
    """Keep the rows in a process of Ray's."""
