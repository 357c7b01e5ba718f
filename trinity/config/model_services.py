"""Subsections of `model` for models served elsewhere."""

from typing import Annotated

from pydantic import Field

from trinity.config.reasons import TINKER_ONLY
from trinity.config.section import Positive, Section
from trinity.config.status import NoEffect, Planned


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

    enable: Annotated[bool, NoEffect("`engine_type: external` of the same model says so")] = False
    """Whether it is served elsewhere."""
