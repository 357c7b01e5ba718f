"""Which services work in an experiment or a stage."""

from typing import Literal

from trinity.config.status import Choices

Mode = Literal["both", "train", "explore", "bench", "serve"]
WITHOUT_TASKS: tuple[Mode, ...] = ("train", "serve")
EXPLORING: tuple[Mode, ...] = ("both", "explore")
"""With tasks to roll out."""

MODES = Choices(
    planned={
        "colocate": "rollout and training in turns on one GPU",
    }
)
"""What else may be written for it."""
