"""Which services work in an experiment or a stage."""

from typing import Literal

from trinity.config.status import Choices

Mode = Literal["both", "train"]

MODES = Choices(
    planned={
        "explore": "explorers without a trainer",
        "bench": "evaluation of all checkpoints of a run",
        "serve": "the model behind an OpenAI-compatible address",
        "colocate": "rollout and training in turns on one GPU",
    }
)
"""What else may be written for it."""
