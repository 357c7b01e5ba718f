"""Finds and kills the descendants of this process, including those whose parents died."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process as /proc shows it."""

    pid: int
    parent: int
    session: int
    is_zombie: bool


def become_subreaper() -> None:
    """Adopts every descendant that loses its parent, instead of leaving it to init."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot adopt orphaned processes")


def reap() -> Iterator[tuple[int, int]]:
    """Collects ended children: their process numbers and exit codes (negative: the signal)."""
    while True:
        try:
            pid, state = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(state)


def kill_orphans(leaders: set[int]) -> None:
    """Kills adopted processes that belong to no living child's session, with their descendants.

    Every child leads its own session, so `leaders` are the sessions to leave alone.
    """
    table = _process_table()
    for entry in table:
        adopted = entry.parent == os.getpid() and entry.pid not in leaders
        if adopted and entry.session not in leaders:
            _kill_tree(entry.pid, table)


def kill_descendants() -> bool:
    """Kills everything below this process; returns true if anything was alive."""
    table = _process_table()
    return _kill_all(_descendants(os.getpid(), table))


def _kill_tree(pid: int, table: list[ProcessEntry]) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _kill_all(_descendants(pid, table))


def _kill_all(entries: list[ProcessEntry]) -> bool:
    alive = [entry for entry in entries if not entry.is_zombie]
    for entry in alive:
        with suppress(ProcessLookupError):
            os.kill(entry.pid, signal.SIGKILL)
    return bool(alive)


def _descendants(root: int, table: list[ProcessEntry]) -> list[ProcessEntry]:
    children = [entry for entry in table if entry.parent == root]
    return children + [
        descendant for child in children for descendant in _descendants(child.pid, table)
    ]


def _process_table() -> list[ProcessEntry]:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [entry for pid in numbers if (entry := _read_entry(pid)) is not None]


def _read_entry(pid: int) -> ProcessEntry | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, _group, session, *_ = stat[stat.rindex(")") + 2 :].split()
    return ProcessEntry(pid, int(parent), int(session), is_zombie=state in "ZX")
