"""Section `data_processor`: what happens to tasks before, and to experiences after, the rollout."""

from typing import Annotated

from pydantic import Field

from trinity.config.experience_buffer import ExperienceBufferConfig
from trinity.config.reasons import UNREAD_THERE
from trinity.config.section import Args, Positive, Section, usual
from trinity.config.status import NoEffect, Planned
from trinity.config.taskset import TasksetConfig


class OperatorConfig(Section):
    """One operator."""

    name: str = ""
    """Its name, or the dotted path of one of your own."""
    args: Args = Field(default_factory=dict)
    """Its arguments."""


class ExperiencePipelineConfig(Section):
    """Experiences on their way from rollout to batch."""

    operators: tuple[OperatorConfig, ...] = ()
    """Experience operators in order, before the advantage function."""
    save_input: Annotated[bool, NoEffect("the database keeps every experience as it came")] = True
    """Keep experiences as they came."""
    input_save_path: Annotated[
        str | None, NoEffect("the database keeps every experience as it came")
    ] = None
    """Where they are kept."""
    inputs: Annotated[dict[str, ExperienceBufferConfig], UNREAD_THERE] = Field(default_factory=dict)
    """Further inputs."""
    output: Annotated[ExperienceBufferConfig | None, UNREAD_THERE] = None
    """Another output than the trainer's buffer."""


class TaskPipelineConfig(Section):
    """Tasks on their way from a file to a taskset."""

    operators: tuple[OperatorConfig, ...] = ()
    """Data-Juicer's operators in order."""
    num_process: Positive = 4
    """Processes that work on it."""
    config_path: str | None = None
    """A file of Data-Juicer's own, in place of the operators."""
    inputs: tuple[str, ...] = ()
    """Files to read."""
    output: TasksetConfig | None = None
    """Where the tasks go; else the training taskset."""
    target_fields: tuple[str, ...] = ()
    """Columns that are kept."""
    priority_weights: dict[str, float] = Field(default_factory=dict)
    """What makes a task come first."""
    top_k: int = -1
    """Tasks that are kept; -1 keeps all."""


class DataProcessorConfig(Section):
    """Both pipelines."""

    experience_pipeline: ExperiencePipelineConfig = usual(ExperiencePipelineConfig)
    """Experiences on their way from rollout to batch."""
    task_pipeline: Annotated[
        TaskPipelineConfig | None,
        Planned("tasks are taken as they are in their files; run `dj-process` on them before"),
    ] = None
    """Tasks on their way from a file to a taskset."""
