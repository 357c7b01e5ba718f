"""Each protection that the checker relies on, made so that it can be switched off.

A check that has never found anything proves little: with the protection that it watches switched
off it must find something. A switch is a file, looked at with each call; while it is not there, the
service does what it always does.
"""

from functools import partial

from tests.chaos.folder import FaultsFolder
from tests.chaos.patching import Function, patch
from tests.chaos.points import Process
from tests.chaos.weak.weaknesses import WEAKNESSES, Weakness


def weaken(process: Process, folder: FaultsFolder) -> None:
    """Put the switches of this process in."""
    for weakness in WEAKNESSES:
        if weakness.process == process:
            patch(weakness.target, partial(_with_switch, weakness=weakness, folder=folder))


def _with_switch(original: Function, *, weakness: Weakness, folder: FaultsFolder) -> Function:
    weak = weakness.weak(original)

    def call(*args: object, **kwargs: object) -> object:
        chosen = weak if folder.is_off(weakness.protection) else original
        return chosen(*args, **kwargs)

    return call
