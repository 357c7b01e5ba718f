"""Subsections `buffer.explorer_input.taskset` and `.eval_tasksets`: the tasks to roll out."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from trinity.config.data_format import DataSelectorConfig, FormatConfig, GenerationConfig
from trinity.config.reasons import DERIVED, IN_DATABASE, NO_RAY
from trinity.config.section import Args, Positive, Section, usual
from trinity.config.status import NoEffect, Renamed

DataName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]*$")]


class TasksetConfig(Section):
    """Tasks, and the workflow and reward that go with them."""

    old_names: ClassVar[Mapping[str, Renamed]] = {"task_selector": Renamed("data_selector")}

    name: DataName = ""
    """Unique in its stage; `taskset` or `eval_taskset_<i>` if left out."""
    storage_type: Literal["file", "sql", "client", "queue"] = "file"
    """Read from files; read from a database's table; submitted over gRPC under this name, as a
    whole or, for `queue`, bit by bit while training goes on."""
    path: str | None = None
    """For `file`: a jsonl, json, csv, parquet or arrow file, a directory of such, or a dataset on
    the Hugging Face hub (`owner/name`). For `sql`: a database's address."""
    table: str | None = None
    """For `sql`: the table, unless it has the taskset's name."""
    split: str = "train"
    """Which split of a directory."""
    subset_name: str | None = None
    """Which subset (a subdirectory) of a directory."""
    repeat_times: Positive = 1
    """Runs of each task in an evaluation; in training all tasksets have
    `algorithm.repeat_times`."""
    format: FormatConfig = usual(FormatConfig)
    """Columns of a row, by their meaning."""
    rollout_args: GenerationConfig = usual(GenerationConfig)
    """Sampling that differs from the model's."""
    workflow_args: Args = Field(default_factory=dict)
    """Arguments of the workflow."""
    reward_fn_args: Args = Field(default_factory=dict)
    """Arguments of the reward."""
    default_workflow_type: str | None = None
    """Workflow by name or dotted path."""
    default_reward_fn_type: str | None = None
    """Reward by name or dotted path; without one the workflow has its own."""
    data_selector: DataSelectorConfig = usual(DataSelectorConfig)
    """The order in which tasks are drawn."""
    max_retry_times: Annotated[int, IN_DATABASE] = 3
    """Further attempts at reading a database."""
    max_retry_interval: Annotated[int, IN_DATABASE] = 1
    """Seconds between them."""
    enable_progress_bar: Annotated[bool, NoEffect("a run shows its own progress")] = False
    """Show how much of a file was read."""
    index: Annotated[int, NoEffect("the buffer remembers how far a run came")] = 0
    """Tasks to leave out at the beginning."""
    is_eval: Annotated[bool, DERIVED] = False
    """Whether it is one of `eval_tasksets`."""
    batch_size: Annotated[int, DERIVED] = 0
    """Tasks of a step."""
    total_epochs: Annotated[int, DERIVED] = 1
    """Passes over the tasks."""
    total_steps: Annotated[int | None, DERIVED] = None
    """Explore steps."""
    ray_namespace: Annotated[str | None, NO_RAY] = None
    """Ray's name for the run."""
