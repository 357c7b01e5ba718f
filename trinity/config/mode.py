"""Modes: the services that work in an experiment or a stage."""

from typing import Literal

from trinity.config.status import Choices

Mode = Literal["both", "train", "explore", "bench", "serve"]
WITHOUT_TASKS: tuple[Mode, ...] = ("train", "serve")
EXPLORING: tuple[Mode, ...] = ("both", "explore")
"""Modes with tasks to roll out."""

MODES = Choices(
    planned={
        "colocate": "rollout and training in turns on one GPU",
    }
)
"""Further values that are accepted for it."""
