"""Section `model`: the policy, its lengths in tokens and how it is sampled."""

from typing import Annotated

from pydantic import Field

from trinity.config.lora import LoRAConfig
from trinity.config.model_services import ExternalModelConfig, TinkerConfig
from trinity.config.reasons import UNREAD_THERE
from trinity.config.section import Args, NonNegative, NumLogprobs, Positive, Section, usual
from trinity.config.status import Planned


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
    trust_remote_code: Annotated[bool, Planned("code that comes with a model is not run")] = False
    """Run the Python code that comes with a model."""
    logprobs: NumLogprobs = 0
    """How many of the likeliest tokens an experience has with their log-probabilities, at each
    position, unless a taskset has its own."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Above 1 tokens of the prompt and the response are less likely; 1 is off."""
    enable_thinking: bool | None = None
    """Switch of chat templates that have a thinking mode."""
    lora_configs: tuple[LoRAConfig, ...] = ()
    """The adapter that is trained in place of the weights; at most one."""
    fully_sharded_loras: Annotated[bool, UNREAD_THERE] = False
    """Shard adapters in the engine."""
    max_cpu_loras: Annotated[int | None, UNREAD_THERE] = None
    """Adapters that the engine keeps in memory."""
    rope_scaling: Annotated[
        Args, Planned("position embeddings are those of the model's config.json: write it there")
    ] = Field(default_factory=dict)
    """Longer sequences than the model was made for."""
    rope_theta: Annotated[
        float | None,
        Planned("position embeddings are those of the model's config.json: write it there"),
    ] = None
    """Base of the position embeddings."""
    tinker: TinkerConfig = usual(TinkerConfig)
    """An external service that rolls out and trains."""
    external_model: ExternalModelConfig = usual(ExternalModelConfig)
    """A model served elsewhere that is evaluated."""

    @property
    def lora(self) -> LoRAConfig | None:
        """The trained adapter; None if all weights are trained."""
        return self.lora_configs[0] if self.lora_configs else None
