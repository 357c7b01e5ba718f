"""Signs of life of long work: after each part, and while a part of a known size is on its way.

life = LifeSigns(link.report_alive)
for path in paths:
    with life.on_disk(path.stat().st_size):
        write(path)                 # signs, for as long as a slow disk may take for this many bytes
    life.show()                     # a sign, at most each second
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIFE_SECONDS = 1.0
"""Signs of life are at least this far apart."""
SLOWEST_DISK = 10 * 2**20
"""Bytes a second; work that is slower shows no more signs, and is ended as a silent one is."""


class LifeSigns:
    """Shows progress to a watchdog that ends silent work.

    A disk that hangs is noticed: signs stop after the longest time that its bytes may take.
    """

    def __init__(self, show: Callable[[], None], *, bytes_per_second: float = SLOWEST_DISK) -> None:
        self._show = show
        self._bytes_per_second = bytes_per_second
        self._shown_at = -LIFE_SECONDS

    def show(self) -> None:
        """Shows it, unless it was shown within the last second."""
        now = time.monotonic()
        if now - self._shown_at >= LIFE_SECONDS:
            self._shown_at = now
            self._show()

    @contextmanager
    def on_disk(self, num_bytes: int) -> Iterator[None]:
        """Shows it while the block writes or reads this many bytes, for a limited time."""
        self.show()
        seconds = num_bytes / self._bytes_per_second
        if seconds < LIFE_SECONDS:
            yield
            return
        is_over = threading.Event()
        thread = threading.Thread(
            target=self._show_for, args=(seconds, is_over), name="life", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _show_for(self, seconds: float, is_over: threading.Event) -> None:
        until = time.monotonic() + seconds
        while not is_over.wait(LIFE_SECONDS) and time.monotonic() < until:
            self._show()


UNWATCHED = LifeSigns(lambda: None)
"""The signs of work without a watchdog."""
