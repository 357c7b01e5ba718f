"""The rank processes of a trainer, as seen from outside."""

from contextlib import suppress

import psutil


def ranks_of(trainer: int) -> list[psutil.Process]:
    """The living ones, in their order; what a rank itself started and left behind is none."""
    found: dict[int, psutil.Process] = {}
    for child in psutil.Process(trainer).children():
        with suppress(psutil.Error, KeyError):  # it is ending, or something else
            found[int(child.environ()["RANK"])] = child
    return [found[number] for number in sorted(found)]
