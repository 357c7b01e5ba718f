"""Section `model`: the policy, its lengths in tokens and how it is sampled."""

from pydantic import Field

from trinity.config.section import NonNegative, Positive, Section


class ModelConfig(Section):
    """The model that is trained; lengths left out are derived from those that are given."""

    model_path: str = ""
    """Directory of the model in Hugging Face's layout, or its name on the hub."""
    critic_model_path: str = ""
    """Where the critic starts, for algorithms that have one; empty is `model_path`."""
    max_model_len: Positive | None = None
    """Longest sequence, prompt and response together; else the sum of the two below."""
    max_prompt_tokens: Positive | None = None
    """Longest prompt."""
    max_response_tokens: Positive | None = None
    """Longest response."""
    min_response_tokens: NonNegative = 0
    """No end token before this many."""
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
