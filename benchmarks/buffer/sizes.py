"""Sizes of the measurement: enough for meaningful figures, or next to nothing for a test."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one run; steps are batches of 256 experiences."""

    large_steps: int = 20
    """Of 16 KiB."""
    small_steps: int = 40
    """Of 2 KiB."""
    huge_steps: int = 8
    """Of 64 KiB."""
    awaited: int = 200
    outstanding: int = 2_048
    leases: int = 8
    wakes: int = 40
    load_seconds: float = 60.0
    """While the trainer is stopped."""
    load_steps: int = 1_200
    """More than are loaded in that time."""
    few_steps: int = 40
    """About 10,000 rows, and as many again in each run."""
    copies: int = 99
    """Of them, which makes a million."""


SMALLEST = Sizes(
    large_steps=1,
    small_steps=1,
    huge_steps=1,
    awaited=4,
    outstanding=16,
    leases=1,
    wakes=2,
    load_seconds=2.0,
    load_steps=8,
    few_steps=1,
    copies=2,
)
