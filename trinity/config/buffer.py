"""Section `buffer`: how much is explored and trained, and on which data."""

from typing import Literal

from pydantic import Field

from trinity.config.experience_buffer import ExperienceBufferConfig
from trinity.config.section import NonNegative, Positive, Section
from trinity.config.taskset import TasksetConfig


class ExplorerInput(Section):
    """The explorer's tasks."""

    taskset: TasksetConfig | None = None
    """Tasks to train on."""
    eval_tasksets: tuple[TasksetConfig, ...] = ()
    """Tasks to evaluate on, never trained on."""
    default_workflow_type: str | None = None
    """Workflow of tasksets that name none."""
    default_eval_workflow_type: str | None = None
    """Workflow of evaluation tasksets that name none; goes before the one above."""
    default_reward_fn_type: str | None = None
    """Reward of tasksets that name none."""


class TrainerInput(Section):
    """The trainer's rows."""

    experience_buffer: ExperienceBufferConfig = ExperienceBufferConfig()
    """Where they come from."""
    auxiliary_buffers: dict[str, ExperienceBufferConfig] = Field(default_factory=dict)
    """Rows of data beside them, by name, for `sample_strategy: mix`."""


class BufferConfig(Section):
    """Sizes, ends and data."""

    batch_size: Positive = 1
    """Tasks of one explore step, not multiplied by `algorithm.repeat_times`."""
    train_batch_size: NonNegative = 0
    """Rows of one train step, expert rows of `sample_strategy: mix` included; 0 is `batch_size`
    times `algorithm.repeat_times`."""
    total_epochs: Positive = 1
    """Passes over the data, where neither `total_steps` nor `trainer.total_steps` is given."""
    total_steps: Positive | None = None
    """Explore steps (in mode train, train steps)."""
    explorer_input: ExplorerInput = ExplorerInput()
    """The explorer's tasks."""
    trainer_input: TrainerInput = TrainerInput()
    """The trainer's rows."""
    max_refill_rounds: NonNegative = 3
    """How often a step whose experiences were filtered away draws further tasks."""
    await_feedback: bool = False
    """Whether a sample without a reward waits for one (`trinity feedback`), and its group with it;
    else it is left out."""
    feedback_timeout: float = Field(default=0.0, ge=0)
    """Seconds after which such a sample is left out; 0 waits as long as it takes."""
    short_batch: Literal["train", "fail"] = "train"
    """What becomes of a batch that stays short after that."""
