"""Processor time of processes, for the benchmarks that count it."""

from collections.abc import Iterable

import psutil


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Returns the user and system seconds of processes so far; those that have ended count as 0."""
    total = 0.0
    for process in processes:
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system
    return total
