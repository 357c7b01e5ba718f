"""Subsections `format`, `data_selector` and `rollout_args`: rows read, drawn and sampled."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.section import Args, NonNegative, NumLogprobs, Positive, Section
from trinity.config.status import NoEffect, Planned

SelectorType = Literal["sequential", "shuffle", "random", "offline_easy2hard", "difficulty_based"]


class FormatConfig(Section):
    """Columns of a row, by their meaning."""

    prompt_type: Literal["messages", "plaintext"] = "messages"
    """For sft and dpo: a row holds lists of messages, or texts; cpt reads texts only."""
    prompt_key: str = "prompt"
    """Column of the prompt."""
    response_key: str = "response"
    """Column of the response, in a taskset the truth; empty for tasks without one."""
    system_prompt_key: str | None = None
    """Column of the system prompt."""
    system_prompt: str | None = None
    """System prompt of rows that have none of their own."""
    messages_key: str = "message"
    """Column of the messages: a list, or its JSON text."""
    chosen_key: str = "chosen"
    """For dpo: column of the better answer, a text or its messages."""
    rejected_key: str = "rejected"
    """For dpo: column of the worse answer."""
    reply_prefix: str | None = None
    """What every answer of a taskset begins with; the model goes on from there."""
    workflow_key: str = ""
    """Column that chooses a row's workflow."""
    reward_fn_key: str = ""
    """Column that chooses a row's reward."""
    tools_key: str = "tools"
    """For training data: column of the tools that a prompt offers, if any: a list, or its JSON."""
    image_key: Annotated[str | None, Planned("prompts are text")] = None
    """Column of images."""
    video_key: Annotated[str | None, Planned("prompts are text")] = None
    """Column of videos."""
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
    n: Annotated[Positive, NoEffect("`repeat_times` says how often a task is rolled out")] = 1
    """Responses of one call."""
