"""Counts of what this process does, for those who ask it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Written by the work, read by the servicer."""

    num_running: int = 0
    num_generated_tokens: int = 0
