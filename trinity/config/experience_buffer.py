"""Subsection `buffer.trainer_input.experience_buffer`: where the trainer's rows come from."""

from typing import Literal

from pydantic import Field

from trinity.config.data_format import DataSelectorConfig, FormatConfig
from trinity.config.section import Section
from trinity.config.taskset import DataName


class ExperienceBufferConfig(Section):
    """The explorer's experiences, or rows of a file."""

    name: DataName = "experience_buffer"
    """How logs and metrics call it."""
    storage_type: Literal["queue", "file"] = "queue"
    """What the explorer makes (mode both), or a file (mode train)."""
    path: str | None = None
    """A jsonl, json or parquet file, a directory of such, or a Hugging Face dataset's directory."""
    split: str = "train"
    """Which split of a directory."""
    subset_name: str | None = None
    """Which subset (a subdirectory) of a directory."""
    format: FormatConfig = FormatConfig()
    """Which column means what."""
    data_selector: DataSelectorConfig = DataSelectorConfig()
    """The order in which rows are drawn."""
    max_read_timeout: float = Field(default=1800.0, gt=0)
    """Seconds the trainer waits for a batch before it gives up."""
