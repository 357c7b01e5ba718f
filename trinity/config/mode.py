"""Which services work in an experiment or a stage."""

from typing import Literal

Mode = Literal["both", "train"]
