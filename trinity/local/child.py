"""One process under the supervisor: starting it, stopping it and what is known when it ended."""

import asyncio
import os
import signal
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from trinity.local.process_spec import ProcessSpec

_TAIL_BYTES = 16_384
_TAIL_LINES = 15
_FIRST_RESTART_DELAY_SECONDS = 0.2
_LONGEST_RESTART_DELAY_SECONDS = 5.0
_SHORT_LIFE_SECONDS = 5.0
"""A process that ends sooner is restarted with a longer delay each time."""
_REMEMBERED_SECONDS = 600.0
"""Restarts longer ago than this do not count against a process."""


class Child:
    """A process that leads its own session and may be started more than once."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.restarts = 0
        self._restarted_at: deque[float] = deque()
        self._num_short_lives = 0
        self._started_at = 0.0
        self.is_stopping = False
        self._was_asked = False
        self.ended = asyncio.Event()
        self.ended.set()
        self.pending_restart: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    @property
    def may_restart(self) -> bool:
        oldest = time.monotonic() - _REMEMBERED_SECONDS
        while self._restarted_at and self._restarted_at[0] < oldest:
            self._restarted_at.popleft()
        return len(self._restarted_at) < self.spec.max_restarts

    def next_restart_delay(self) -> float:
        """Records a restart; returns the seconds to wait before it."""
        now = time.monotonic()
        is_short = now - self._started_at < _SHORT_LIFE_SECONDS
        self._num_short_lives = self._num_short_lives + 1 if is_short else 0
        self._restarted_at.append(now)
        self.restarts += 1
        delay = _FIRST_RESTART_DELAY_SECONDS * 2.0**self._num_short_lives
        return min(delay, _LONGEST_RESTART_DELAY_SECONDS)

    def forbid_restart(self) -> None:
        self.is_stopping = True
        if self.pending_restart is not None:
            self.pending_restart.cancel()

    def start(self) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.pid = os.posix_spawn(
            self.spec.argv[0],
            self.spec.argv,
            os.environ | self.spec.env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.spec.log_file), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGTERM],
        )
        self._started_at = time.monotonic()
        self.ended.clear()

    def ask_to_stop(self) -> None:
        """Sends the stop signal, once: a second one often means to drop everything."""
        if not self._was_asked:
            self._was_asked = True
            with suppress(ProcessLookupError):
                os.kill(self.pid, self.spec.stop_signal)

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def log_tail(self) -> str:
        """Returns the last lines that the process wrote."""
        return _tail(self.spec.log_file)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            content = file.read()
    except FileNotFoundError:
        return ""
    return "\n".join(content.decode(errors="replace").splitlines()[-_TAIL_LINES:])
