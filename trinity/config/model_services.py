"""Subsections of `model` for models that others serve."""

from typing import Annotated

from trinity.config.reasons import EXTERNAL_ONLY, TINKER_ONLY
from trinity.config.section import Positive, Section
from trinity.config.status import Planned


class TinkerConfig(Section):
    """The Tinker service in place of one's own engines and trainer."""

    enable: Annotated[bool, Planned("engines and trainer are one's own")] = False
    """Roll out and train there."""
    rank: Annotated[Positive, TINKER_ONLY] = 16
    """Rank of the adapter."""
    seed: Annotated[int | None, TINKER_ONLY] = None
    """Seed of its first weights."""
    train_mlp: Annotated[bool, TINKER_ONLY] = True
    """Adapt the feed-forward layers."""
    train_attn: Annotated[bool, TINKER_ONLY] = True
    """Adapt the attention layers."""
    train_unembed: Annotated[bool, TINKER_ONLY] = True
    """Adapt the last layer."""
    base_url: Annotated[str | None, TINKER_ONLY] = None
    """Address of the service."""


class ExternalModelConfig(Section):
    """A model behind an OpenAI-compatible address."""

    enable: Annotated[bool, Planned("a model that others serve is not evaluated")] = False
    """Evaluate it, in `mode: bench`."""
    base_url_env: Annotated[str, EXTERNAL_ONLY] = "OPENAI_BASE_URL"
    """Environment variable that holds the address."""
    api_key_env: Annotated[str, EXTERNAL_ONLY] = "OPENAI_API_KEY"
    """Environment variable that holds the key."""
    model_name: Annotated[str | None, EXTERNAL_ONLY] = None
    """How the model is called there."""
