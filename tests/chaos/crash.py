"""Puts the points into a process of the stack, so that it can die there."""

import os
import signal
import time
from functools import partial
from typing import Any

from tests.chaos.folder import FaultsFolder
from tests.chaos.patching import Function, around, patch
from tests.chaos.points import ALL, Point, Process

DEATHS = "deaths"


def install(process: Process, folder: FaultsFolder) -> None:
    """Patch every point of this process.

    Raises: AttributeError, ImportError when a point's function is not there any more.
    """
    for point in ALL:
        if point.process == process:
            patch(point.target, partial(_with_point, point=point, folder=folder))


def _with_point(original: Function, *, point: Point, folder: FaultsFolder) -> Function:
    def after(result: Any) -> None:
        if point.counts(result):
            _reach(point, folder)

    if point.when == "before":
        return around(original, before=partial(_reach, point, folder))
    return around(original, after=after)


def _reach(point: Point, folder: FaultsFolder) -> None:
    folder.count_reached(point.name)
    if folder.disarm(point.name):
        folder.log(DEATHS, {"point": point.name, "at": time.time()})
        os.kill(os.getpid(), signal.SIGKILL)
