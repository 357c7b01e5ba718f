"""A user's operator and advantage function, in whose process somebody may die."""

import os
import signal
import time

import numpy as np

from tests.chaos.crash import DEATHS
from tests.chaos.folder import FaultsFolder
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.operators.rollouts import Changes, Rollouts
from trinity.operators.tasks.task_rows import TaskChanges, TaskRows

OPERATOR, ADVANTAGE = "worker.operator-called", "worker.advantage-called"
BUFFER = "buffer.operator-called"
"""The process that has called it dies, while it runs."""


def first_is_better(rollouts: Rollouts, *, bonus: float) -> Changes:
    """What it changes decides what is learned: a sample that goes without it is noticed."""
    _die_at(BUFFER, os.getppid())
    _die_at(OPERATOR, os.getpid())
    return Changes(rewards=rollouts.rewards + bonus * (np.arange(len(rollouts.rewards)) % 2 == 0))


def every_other(tasks: TaskRows, *, weigh: str) -> TaskChanges:
    """Leaves out what is even by its column, and orders the rest."""
    places_N = np.array([round(100 * float(str(row["strong"]))) for row in tasks.rows])
    scores_N = np.array([float(str(row[weigh])) for row in tasks.rows]) + places_N
    return TaskChanges(left_out=places_N % 2 == 0, reason="it is even", scores={"odd": scores_N})


def above_the_mean(samples: Samples) -> Advantages:
    _die_at(ADVANTAGE, os.getpid())
    return Advantages(samples.rewards - samples.rewards.mean())


def _die_at(point: str, pid: int) -> None:
    folder = FaultsFolder.from_environment()
    if folder.disarm(point):
        folder.log(DEATHS, {"point": point, "at": time.time()})
        os.kill(pid, signal.SIGKILL)
