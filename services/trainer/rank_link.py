"""A rank's end of the pipes to its service: orders in, events out; no rank outlives its service."""

import ctypes
import logging
import os
import queue
import signal
import sys
import threading
from typing import IO

import grpc

from services.trainer.messages import (
    EVENTS_VARIABLE,
    ORDERS,
    Activity,
    Alive,
    Event,
    StageOrder,
    encode,
)
from services.trainer.rank_waits import RankWaits

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
ORPHANED = 3


def die_with_parent() -> None:
    """Have the kernel end this process with the service's; the closed pipe is the second line."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class RankLink:
    """Orders from the service and events to it.

    `stop` is set by a stop order, which also closes the channels given to `close_on_stop`, so that
    no long poll outlasts it.
    """

    def __init__(self, *, orders: IO[str], events_descriptor: int) -> None:
        self.stop = threading.Event()
        self.waits = RankWaits(self.send)
        self._orders = orders
        self._events_descriptor = events_descriptor
        self._pending: queue.SimpleQueue[StageOrder | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []
        self._incarnation = 0

    @classmethod
    def from_environment(cls) -> "RankLink":
        """The pipes this process was started with; begins to listen."""
        link = cls(orders=sys.stdin, events_descriptor=int(os.environ[EVENTS_VARIABLE]))
        threading.Thread(target=link._listen, name="orders", daemon=True).start()
        return link

    def next_order(self) -> StageOrder | None:
        """The next stage; None when it is time to exit."""
        return self._pending.get()

    def close_on_stop(self, channels: list[grpc.Channel]) -> None:
        """Channels of the stage at hand."""
        with self._lock:
            self._channels = channels

    def send(self, event: Event) -> None:
        """Tell the service, whole lines only."""
        with self._lock:
            os.write(self._events_descriptor, encode(event))

    def begin(self, incarnation: int) -> None:
        """The life that later activities belong to."""
        self._incarnation = incarnation

    def report_activity(self, activity: str, step: int, version: int) -> None:
        """Say what this rank does."""
        self.send(
            Activity(activity=activity, incarnation=self._incarnation, step=step, version=version)
        )

    def report_alive(self) -> None:
        """Say that this rank gets on, however long what it does takes."""
        self.send(Alive())

    def _listen(self) -> None:
        for line in self._orders:
            order = ORDERS.validate_json(line)
            if isinstance(order, StageOrder):
                self._pending.put(order)
            else:
                self._stop()
        if not self.stop.is_set():
            os._exit(ORPHANED)

    def _stop(self) -> None:
        self.stop.set()
        self._pending.put(None)
        with self._lock:
            for channel in self._channels:
                channel.close()
