"""Sections `buffer` and `data_processor`: tasks, training data, and the pipelines over them."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trinity.config.schema.base import (
    Args,
    NonNegative,
    Positive,
    Section,
    default_section,
)
from trinity.config.schema.data import ExperienceBufferConfig, TasksetConfig
from trinity.operators.tasks.task_pipeline import OrderMethod

TrainStepChoice = Literal["auto", "rows", "explore_step"]


class ExplorerInput(Section):
    """The explorer's tasks."""

    taskset: TasksetConfig | None = None
    """Tasks to train on."""
    tasksets: tuple[TasksetConfig, ...] = ()
    """Several tasksets to train on, mixed in proportion to their sizes."""
    eval_tasksets: tuple[TasksetConfig, ...] = ()
    """Tasks to evaluate on, never trained on."""
    default_workflow_type: str | None = None
    """Workflow of tasksets that name none."""
    default_eval_workflow_type: str | None = None
    """Workflow of evaluation tasksets that name none; goes before the one above."""
    default_reward_fn_type: str | None = None
    """Reward of tasksets that name none."""

    @property
    def to_train_on(self) -> tuple[TasksetConfig, ...]:
        """The tasksets that are not evaluated."""
        return self.tasksets if self.taskset is None else (self.taskset, *self.tasksets)

    def written(self) -> Iterator[tuple[str, TasksetConfig]]:
        """Yields all tasksets with their places below the section."""
        if self.taskset is not None:
            yield "taskset", self.taskset
        for name, listed in (("tasksets", self.tasksets), ("eval_tasksets", self.eval_tasksets)):
            yield from ((f"{name}[{place}]", tasks) for place, tasks in enumerate(listed))


class TrainerInput(Section):
    """The trainer's rows."""

    experience_buffer: ExperienceBufferConfig = default_section(ExperienceBufferConfig)
    """Where they come from."""
    auxiliary_buffers: dict[str, ExperienceBufferConfig] = Field(default_factory=dict)
    """Rows of data beside them, by name. `sample_strategy: mix` takes those of
    `sample_strategy_args.sft_dataset_name`: `sft_dataset`, or the only one there is."""


class BufferConfig(Section):
    """Sizes, ends and data."""

    batch_size: Positive = 1
    """Tasks of one explore step, not multiplied by `algorithm.repeat_times`."""
    train_batch_size: NonNegative = 0
    """Rows of one train step, expert rows of `sample_strategy: mix` included; 0 is `batch_size`
    times `algorithm.repeat_times`, less the tasks that `explorer.over_rollout` may leave behind."""
    train_step: TrainStepChoice = "auto"
    """What a train step is made of. With `rows` it is one batch of `train_batch_size` rows, one
    update of the weights. With `explore_step` it is all samples of one explore step, however many
    they are, in as few updates of at most `train_batch_size` rows as that takes. `auto` is
    `explore_step` where a workflow says that a run's number of samples is not known beforehand
    (`gives_several_samples`), without replay and expert rows, and else `rows`."""
    total_epochs: Positive = 1
    """Passes over the data, where neither `total_steps` nor `trainer.total_steps` is given."""
    total_steps: Positive | None = None
    """Explore steps (in mode train, train steps)."""
    explorer_input: ExplorerInput = default_section(ExplorerInput)
    """The explorer's tasks."""
    trainer_input: TrainerInput = default_section(TrainerInput)
    """The trainer's rows."""
    max_refill_rounds: NonNegative = 3
    """How often a step whose experiences were filtered away draws further tasks."""
    await_feedback: bool = False
    """Whether a sample without a reward waits for one (`trinity feedback`), and its group with it;
    else it is left out."""
    feedback_timeout: float = Field(default=0.0, ge=0)
    """Seconds after which such a sample is left out; 0 waits as long as it takes."""
    keep_steps: NonNegative | None = None
    """Newest train steps whose samples keep their contents (tokens, texts, log-probabilities); what
    the oldest kept checkpoint or unfinished work needs is kept in any case. None keeps all."""
    short_batch: Literal["train", "fail"] = "train"
    """What becomes of a batch that stays short after that."""


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

    experience_pipeline: ExperiencePipelineConfig = default_section(ExperiencePipelineConfig)
    """Experiences on their way from rollout to batch."""
    task_pipeline: TaskPipelineConfig | None = None
    """What is done to tasks before any of them is explored."""
