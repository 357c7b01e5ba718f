"""Section `data_processor`: what happens to tasks before, and to experiences after, the rollout."""

from typing import Annotated

from pydantic import Field

from trinity.config.experience_buffer import ExperienceBufferConfig
from trinity.config.reasons import UNREAD_THERE
from trinity.config.section import Args, Positive, Section, usual
from trinity.config.status import NoEffect
from trinity.config.taskset import TasksetConfig
from trinity.task_operators.task_pipeline import OrderMethod


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
    """Tasks on their way into the first taskset; in mode train, rows into the trainer's buffer."""

    operators: tuple[OperatorConfig, ...] = ()
    """Task operators in order, Data-Juicer's included if its server is given."""
    num_process: Positive = 4
    """Processes of Data-Juicer that work on it."""
    config_path: str | None = None
    """A file of Data-Juicer's own, in place of the operators."""
    inputs: tuple[str, ...] = ()
    """Files to read, in place of the taskset's `path`."""
    output: Annotated[
        TasksetConfig | None,
        NoEffect("the database keeps what is left, as the taskset that the stage draws from"),
    ] = None
    """Where the tasks go; else the training taskset."""
    target_fields: tuple[str, ...] = ()
    """Columns that are kept; without them all are."""
    priority_weights: dict[str, float] = Field(default_factory=dict)
    """Weights of a task's priority: scores by name, or `difficulty`, `quality`, `diversity`,
    `usage_frequency`; without them -0.7, 1.0, 0.8 and -0.5 for those that are measured."""
    top_k: Annotated[int, Field(ge=-1)] = -1
    """Tasks that are kept, the first in order; -1 keeps all."""
    order_method: OrderMethod = "sort"
    """By priority, the highest first; the same in layers from the highest to the lowest each;
    by chance; as they came."""
    folding_layers: Positive = 3
    """Layers of `order_method: folding`."""


class DataProcessorConfig(Section):
    """Both pipelines."""

    experience_pipeline: ExperiencePipelineConfig = usual(ExperiencePipelineConfig)
    """Experiences on their way from rollout to batch."""
    task_pipeline: TaskPipelineConfig | None = None
    """What is done to tasks before any of them is explored."""
