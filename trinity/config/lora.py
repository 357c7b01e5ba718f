"""Subsection `model.lora_configs`: an adapter that is trained in place of the weights."""

import re
from typing import Annotated

from trinity.config.reasons import DERIVED, UNREAD_THERE
from trinity.config.section import Positive, Section
from trinity.config.status import NoEffect

ALL_LINEAR = "all-linear"
Names = str | tuple[str, ...]
"""A pattern of whole names, or the ends of names."""
_LIST = re.compile(r"[\w.\-]+(\s*,\s*[\w.\-]+)*")


class LoRAConfig(Section):
    """An adapter of low rank."""

    name: Annotated[str | None, NoEffect("there is one adapter")] = None
    """Its name."""
    path: str | None = None
    """Directory of an adapter to start from, in peft's layout, whose rank, scale and layers it
    then has; else it starts at zero."""
    base_model_name: str | None = None
    """How the adapter's files call the model below; else by its path."""
    lora_rank: Positive = 32
    """Rank."""
    lora_alpha: Positive = 32
    """Scale, over the rank."""
    lora_dtype: Annotated[str, UNREAD_THERE] = "auto"
    """Type of its weights."""
    target_modules: str = ALL_LINEAR
    """Layers that get one: `all-linear` for all but the last, names with commas in between such as
    `q_proj,v_proj`, or a regular expression of whole names."""
    exclude_modules: str | None = None
    """Layers that get none, as names or an expression."""
    is_dummy: Annotated[bool, DERIVED] = False
    """Whether it starts at zero."""

    @property
    def targets(self) -> Names:
        """`target_modules` as peft takes it."""
        return ALL_LINEAR if self.target_modules == ALL_LINEAR else _names(self.target_modules)

    @property
    def excluded(self) -> Names:
        """`exclude_modules` as peft takes it; empty for none."""
        return () if self.exclude_modules is None else _names(self.exclude_modules)


def _names(text: str) -> Names:
    if _LIST.fullmatch(text.strip()):
        return tuple(name.strip() for name in text.split(","))
    return text
