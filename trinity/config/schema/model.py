"""Section `model`: the model, its adapters, and models that others serve."""

import re

from pydantic import Field

from trinity.config.schema.base import (
    Args,
    NonNegative,
    NumLogprobs,
    Positive,
    Section,
    default_section,
)

ALL_LINEAR = "all-linear"
THINKING = "enable_thinking"
"""The variable of a chat template that its key of the same name sets."""
Names = str | tuple[str, ...]
"""A pattern of whole names, or the ends of names."""
_LIST = re.compile(r"[\w.\-]+(\s*,\s*[\w.\-]+)*")


def merge_template_kwargs(given: Args, enable_thinking: bool | None) -> Args:
    """Returns the variables of a chat template, the switch of thinking among them if it is set."""
    return given if enable_thinking is None else {**given, THINKING: enable_thinking}


class LoRAConfig(Section):
    """An adapter of low rank."""

    path: str | None = None
    """Directory of an adapter to start from, in peft's layout, whose rank, scale and layers it
    then has; else it starts at zero."""
    base_model_name: str | None = None
    """How the adapter's files call the model below; else by its path."""
    lora_rank: Positive = 32
    """Rank."""
    lora_alpha: Positive = 32
    """Scale, over the rank."""
    target_modules: str = ALL_LINEAR
    """Layers that get one: `all-linear` for all but the last, names with commas in between such as
    `q_proj,v_proj`, or a regular expression of whole names."""
    exclude_modules: str | None = None
    """Layers that get none, as names or an expression."""

    @property
    def targets(self) -> Names:
        """`target_modules` as peft takes it."""
        return ALL_LINEAR if self.target_modules == ALL_LINEAR else _names(self.target_modules)

    @property
    def excluded(self) -> Names:
        """`exclude_modules` as peft takes it; may be empty."""
        return () if self.exclude_modules is None else _names(self.exclude_modules)


def _names(text: str) -> Names:
    if _LIST.fullmatch(text.strip()):
        return tuple(name.strip() for name in text.split(","))
    return text


class TinkerConfig(Section):
    """The Tinker service in place of one's own engines and trainer."""


class ExternalAccessConfig(Section):
    """Access to a model served elsewhere behind an OpenAI-compatible address."""

    base_url_env: str = Field(default="OPENAI_BASE_URL", min_length=1)
    """Environment variable of the explorer that holds the address, up to `/v1`."""
    api_key_env: str = Field(default="OPENAI_API_KEY", min_length=1)
    """Environment variable of the explorer that holds the key."""
    model_name: str | None = None
    """Name of the model there."""


class ExternalModelConfig(ExternalAccessConfig):
    """A model served elsewhere in the place of the policy."""

    enable: bool = False
    """Evaluate it, in `mode: bench`, or explore with it, in `mode: explore`; the same as
    `explorer.rollout_model.engine_type: external`."""


class AuxiliaryExternalConfig(ExternalAccessConfig):
    """A model served elsewhere beside the policy."""


class ModelConfig(Section):
    """The model that is trained; lengths left out are derived from those that are given."""

    model_path: str = ""
    """Directory of the model in Hugging Face's layout, or its name on the hub."""
    critic_model_path: str = ""
    """Where the critic starts, for algorithms that have one; empty is `model_path`."""
    max_model_len: Positive | None = None
    """Longest sequence, prompt and response together; else the sum of the two below."""
    max_prompt_tokens: Positive | None = None
    """Longest prompt of a workflow's own call; else what responses leave of `max_model_len`, or
    half. Over the OpenAI-compatible address `max_model_len` alone counts."""
    max_response_tokens: Positive | None = None
    """Longest response to such a call; else what prompts leave of `max_model_len`, or half."""
    min_response_tokens: NonNegative = 1
    """No end token before this many; always below `max_response_tokens`. Ratios of these tokens are
    to the distribution without it: on policy they are a little below 1."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature, unless a taskset has its own."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling, unless a taskset has its own; 1 is off."""
    top_k: int = Field(default=-1, ge=-1)
    """Sampling among the k likeliest tokens, unless a taskset has its own; -1 is off."""
    enable_prompt_truncation: bool = True
    """A prompt that is too long becomes a masked experience without reward; else the run fails."""
    custom_chat_template: str | None = None
    """Jinja text used in place of the tokenizer's chat template."""
    chat_template_path: str | None = None
    """File that holds such a text."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model, with all rights of explorer and trainer. Where
    these have credentials, `TRINITY_TRUST_REMOTE_CODE=true` in their environment must allow it."""
    logprobs: NumLogprobs = 0
    """How many of the likeliest tokens an experience has with their log-probabilities, at each
    position, unless a taskset has its own."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Above 1 tokens of the prompt and the response are less likely; 1 is off."""
    enable_thinking: bool | None = None
    """Switch of chat templates that have a thinking mode."""
    chat_template_kwargs: Args = Field(default_factory=dict)
    """Further variables of the chat template, such as `reasoning_effort: high`."""
    lora_configs: tuple[LoRAConfig, ...] = ()
    """The adapter that is trained in place of the weights; at most one."""
    rope_scaling: Args = Field(default_factory=dict)
    """Longer sequences than the model was made for: a `rope_type` with its keys, laid over the
    model's `rope_parameters` in engine and trainer."""
    rope_theta: float | None = Field(default=None, gt=0)
    """Base of the position embeddings, in engine and trainer; else the model's."""
    tinker: TinkerConfig = default_section(TinkerConfig)
    """An external service that rolls out and trains."""
    external_model: ExternalModelConfig = default_section(ExternalModelConfig)
    """A model served elsewhere that is evaluated."""

    @property
    def template_kwargs(self) -> Args:
        """All variables that the chat template gets."""
        return merge_template_kwargs(self.chat_template_kwargs, self.enable_thinking)

    @property
    def lora(self) -> LoRAConfig | None:
        """The trained adapter; None if all weights are trained."""
        return self.lora_configs[0] if self.lora_configs else None
