"""Kills processes of an earlier stack in the same directory that were orphaned."""

import os
import signal
from contextlib import suppress
from pathlib import Path

_MARK = "TRINITY_LOCAL_JOB"


def marked_environment(job_dir: Path) -> dict[str, str]:
    """Returns the environment of every process of a stack, which its descendants inherit.

    SPT_NOENV keeps programs that rename themselves (vLLM's engine) from overwriting the mark.
    """
    return {_MARK: str(job_dir), "SPT_NOENV": "1"}


def kill_leftovers(job_dir: Path) -> int:
    """Kills every process with this directory's mark; call it with the directory locked."""
    mark = f"{_MARK}={job_dir}".encode()
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return sum(_kill_if_marked(pid, mark) for pid in numbers if pid != os.getpid())


def _kill_if_marked(pid: int, mark: bytes) -> bool:
    with suppress(OSError):  # gone meanwhile, or owned by another user
        descriptor = os.pidfd_open(pid)
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False
