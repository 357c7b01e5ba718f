"""Priorities by name: the order in which a batch with replay takes samples."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.priority.candidate import PriorityFn

_HERE = "trinity.algorithm.priority"
PRIORITY_PATHS = {
    "linear_decay": f"{_HERE}.linear_decay.linear_decay",
    "decay_limit_randomization": f"{_HERE}.decay_limit_randomization.decay_limit_randomization",
}
"""Functions of this package by name; any other name is a user's."""

PRIORITIES: "Registry[PriorityFn]" = Registry(
    "priority function", PRIORITY_PATHS, adapter="trinity.rft.buffer.storage.adapt_priority"
)
