"""Sections of rows: tasksets, experience buffers, formats, selectors, sampling."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trinity.config.schema.base import (
    MAX_NAME,
    Args,
    NonNegative,
    NumLogprobs,
    Positive,
    Section,
    default_section,
)

SelectorType = Literal["sequential", "shuffle", "random", "offline_easy2hard", "difficulty_based"]

DataName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]*$", max_length=MAX_NAME)]
_PART = "[A-Za-z0-9][A-Za-z0-9._-]*"
RunName = Annotated[str, StringConstraints(pattern=f"^{_PART}(/{_PART}){{0,2}}$")]
"""Project, group and name of a run; a name alone is one of the same project and group."""
COOLDOWN_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
Cooldown = (
    Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9]+([.][0-9]+)?[smh]$")]
)
"""Train steps, or a time with its unit."""


class FormatConfig(Section, frozen=False):
    """Columns of a row, by their meaning; a workflow may change those of its task."""

    prompt_type: Literal["messages", "plaintext"] = "messages"
    """For sft, dpo and kto: a row holds lists of messages, or texts; cpt reads texts only."""
    prompt_key: str = "prompt"
    """Column of the prompt."""
    response_key: str = "response"
    """Column of the response, in a taskset the truth; empty for tasks without one."""
    system_prompt_key: str | None = None
    """Column of the system prompt."""
    system_prompt: str | None = None
    """System prompt of rows that have none of their own."""
    image_key: str | None = None
    """Column of images: paths, bytes, data URLs, images of `datasets`, or a list of such. They take
    the places of `<image>` in the texts, in order; without any, they stand before the first text of
    the user. Images in parts of messages are read too. Null reads none."""
    messages_key: str = "message"
    """Column of the messages: a list, or its JSON text."""
    chosen_key: str = "chosen"
    """For dpo: column of the better answer, a text, or messages that may begin with the prompt."""
    rejected_key: str = "rejected"
    """For dpo: column of the worse answer."""
    label_key: str = "label"
    """For kto on rows: column of the label, true or 1 for a good answer, false or 0 for a bad."""
    reply_prefix: str | None = None
    """What every answer of a taskset begins with; the model goes on from there."""
    workflow_key: str = ""
    """Column that chooses a row's workflow."""
    reward_fn_key: str = ""
    """Column that chooses a row's reward."""
    tools_key: str = "tools"
    """For training data: column of the tools that a prompt offers, if any: a list, or its JSON."""
    enable_concatenated_multi_turn: bool = False
    """For sft: train all turns of the assistant in one row, not the last alone."""
    chat_template: str | None = None
    """For training data: Jinja text used in place of the model's chat template."""
    enable_thinking: bool | None = None
    """For training data: replaces `model.enable_thinking`."""


class DataSelectorConfig(Section):
    """The order in which rows are drawn."""

    selector_type: SelectorType = "sequential"
    """In the file's order; a new permutation each epoch; by chance each step; by falling features;
    or near a pass rate, by what the rollouts teach."""
    seed: NonNegative | None = None
    """Seed of whatever chance there is, unless the experiment's."""
    feature_keys: tuple[str, ...] = ()
    """Columns of numbers. For `offline_easy2hard`: rows with the largest come first. For
    `difficulty_based`: two, the pass rates of a weak and of a strong model."""
    kwargs: Args = Field(default_factory=dict)
    """Arguments of `difficulty_based`."""


class GenerationConfig(Section):
    """Sampling of one taskset; what is left out is the model's."""

    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling."""
    top_k: int | None = Field(default=None, ge=-1)
    """Sampling among the k likeliest tokens; -1 is off."""
    max_tokens: Positive | None = None
    """Longest response, unless `model.max_response_tokens`."""
    logprobs: NumLogprobs | None = None
    """How many of the likeliest tokens an experience has at each position."""


class TasksetConfig(Section):
    """Tasks, and the workflow and reward that go with them."""

    name: DataName = ""
    """Unique in its stage; `taskset` or `eval_taskset_<i>` if left out."""
    storage_type: Literal["file", "sql", "client", "queue"] = "file"
    """Read from files; read from a database's table; submitted over gRPC under this name, as a
    whole or, for `queue`, bit by bit while training goes on."""
    path: str | None = None
    """For `file`: a jsonl, json, csv, tsv, parquet or arrow file (texts also as `.gz`), a directory
    of such, or a dataset on the Hugging Face hub (`owner/name`). For `sql`: a SQLite file, or a
    database's address. For `queue`, if wanted: such a database, to whose table of the taskset's
    name each task is written too."""
    table: str | None = None
    """For `sql`: the table, unless it has the taskset's name."""
    split: str = "train"
    """Which split of a directory."""
    subset_name: str | None = None
    """Which subset (a subdirectory) of a directory."""
    repeat_times: Positive = 1
    """Runs of each task in an evaluation; in training all tasksets have
    `algorithm.repeat_times`."""
    format: FormatConfig = default_section(FormatConfig)
    """Columns of a row, by their meaning."""
    rollout_args: GenerationConfig = default_section(GenerationConfig)
    """Sampling that differs from the model's."""
    workflow_args: Args = Field(default_factory=dict)
    """Arguments of the workflow."""
    reward_fn_args: Args = Field(default_factory=dict)
    """Arguments of the reward."""
    default_workflow_type: str | None = None
    """Workflow by name or dotted path."""
    default_reward_fn_type: str | None = None
    """Reward by name or dotted path; without one the workflow has its own."""
    data_selector: DataSelectorConfig = default_section(DataSelectorConfig)
    """The order in which tasks are drawn."""


def _decay() -> Args:
    return {"decay": 2.0}


class ReplayBufferConfig(Section):
    """Experiences trained by priority, and more than once."""

    enable: bool = False
    """Order experiences by priority; with `reuse_cooldown_time` they are trained more than once."""
    priority_fn: str = "linear_decay"
    """Priority of an experience: `linear_decay`, `decay_limit_randomization`, the name
    of a function from a plugin folder, or a dotted path."""
    priority_fn_args: Args = Field(default_factory=_decay)
    """Its arguments."""
    reuse_cooldown_time: Cooldown | None = None
    """Train steps until an experience may be trained again, rounded up, at least the next one, or
    with a unit (`30s`, `5m`, `2h`) time; None is never. Batches fill up with such rows beyond those
    of one explore step. With a time, a batch depends on the clock until it is recorded."""
    when_full: Literal["train", "drop"] = "train"
    """What becomes of rows never trained when more of them wait than `capacity`: `train` takes them
    before any other, `drop` leaves the last in order out, and counts them."""


class ExperienceBufferConfig(Section):
    """The explorer's experiences, or rows of a file."""

    name: DataName = "experience_buffer"
    """Its name in logs and metrics."""
    storage_type: Literal["queue", "file", "sql"] | None = None
    """What the explorer makes (mode both), or rows of a file or a database's table (mode train);
    else as the mode has it."""
    path: str | None = None
    """In modes with an explorer, a place where its experiences are written too: a database
    (`sqlite:///file.db`, `postgresql://...`), or a directory or `.jsonl` file for JSON lines. In
    mode train what is read: for `file` a jsonl, json, csv, tsv, parquet or arrow file, a directory
    of such, or a dataset on the Hugging Face hub (`owner/name`), for `sql` a SQLite file or a
    database's address."""
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
    format: FormatConfig = default_section(FormatConfig)
    """Columns of a row, by their meaning."""
    data_selector: DataSelectorConfig = default_section(DataSelectorConfig)
    """The order in which rows are drawn."""
    on_bad_row: Literal["fail", "skip"] = "fail"
    """What becomes of a row of data that cannot be trained on: `fail` says so before the first
    step; `skip` leaves it out, counts it, and names the first of them. A step with nothing to train
    on, of data or of rollouts, ends the run, or with `skip` passes without moving a weight."""
    max_read_timeout: Annotated[float | None, Field(gt=0)] = None
    """Seconds that the trainer waits for rollouts before it trains on those that are ready, however
    few: batches then depend on the clock until they are recorded. Unset, none does. Without any
    rollout the trainer gives up after half an hour, or this time if it is longer; with
    `buffer.await_feedback` after `buffer.feedback_timeout` or 30 days more."""
    replay_buffer: ReplayBufferConfig = default_section(ReplayBufferConfig)
    """Experiences that are trained more than once."""
    replay_buffer_kwargs: Args = Field(default_factory=dict)
    """Its `priority_fn` with that function's arguments beside it, as old releases have them."""
    capacity: Positive = 10000
    """Most rows that a replay buffer holds; without one, credit limits the waiting rows."""
