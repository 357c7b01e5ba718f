"""A rank's end of the pipes to its service: orders in, events out; no rank outlives its service."""

import ctypes
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable
from typing import IO

import grpc

from services.trainer.messages import (
    EVENTS_VARIABLE,
    ORDERS,
    Event,
    RankActivity,
    RankAlive,
    RankMeasured,
    RankWaiting,
    SaveOrder,
    StageOrder,
    StopOrder,
    encode,
)
from trinity.runtime.members import MemberPhase, WaitKind
from trinity.runtime.process.channel import reserve_stdin
from trinity.runtime.telemetry.tracing import Attributes

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
ORPHANED = 3


def die_with_parent() -> None:
    """Has the kernel kill this process with the service's; the closed pipe is the fallback."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class RankWaitReporter:
    """A rank's waits; thread-safe."""

    def __init__(self, send: Callable[[RankWaiting], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def set(
        self,
        name: str,
        *,
        waits_for: str,
        reason: str,
        deadline_seconds: float = 0.0,
        kind: WaitKind = WaitKind.STATE,
        experiment_id: str = "",
    ) -> None:
        """Reports that the wait of this name continues; it is of the rank's own experiment."""
        del experiment_id
        with self._lock:
            self._open.add(name)
        self._send(
            RankWaiting(
                name=name,
                waits_for=waits_for,
                reason=reason,
                deadline_seconds=deadline_seconds,
                wait_kind=kind,
            )
        )

    def clear(self, name: str) -> None:
        """Reports that the wait of this name is over, if it was open."""
        with self._lock:
            is_open = name in self._open
            self._open.discard(name)
        if is_open:
            self._send(RankWaiting(name=name))


class RankLink:
    """Receives orders from the service and sends events to it.

    `stop` is set by a stop order, which also closes the channels given to
    `close_channels_on_stop`, so that no long poll outlasts it. `save` is set by an order to save
    the step in hand and leave the stage, which also calls what `interrupt_on_save` was given.
    """

    def __init__(self, *, orders: IO[bytes], events_descriptor: int) -> None:
        self.stop = threading.Event()
        self.save = threading.Event()
        self.waits = RankWaitReporter(self.send_event)
        self._orders = orders
        self._events_descriptor = events_descriptor
        self._pending: queue.SimpleQueue[StageOrder | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._channels: list[grpc.Channel] = []
        self._interrupt_poll: Callable[[], None] = lambda: None
        self._incarnation = 0

    @classmethod
    def from_environment(cls) -> "RankLink":
        """Opens the pipes this process was started with, and begins to listen."""
        link = cls(orders=reserve_stdin(), events_descriptor=int(os.environ[EVENTS_VARIABLE]))
        threading.Thread(target=link._read_orders, name="orders", daemon=True).start()
        return link

    def next_order(self) -> StageOrder | None:
        """Returns the next stage; None when it is time to exit."""
        return self._pending.get()

    def close_channels_on_stop(self, channels: list[grpc.Channel]) -> None:
        """Registers the channels of the current stage."""
        with self._lock:
            self._channels = channels

    def interrupt_on_save(self, interrupt_poll: Callable[[], None]) -> None:
        """Registers a function that interrupts the current stage's long poll for a batch."""
        self._interrupt_poll = interrupt_poll

    def send_event(self, event: Event) -> None:
        """Sends an event to the service as one whole line."""
        with self._lock:
            os.write(self._events_descriptor, encode(event))

    def set_incarnation(self, incarnation: int) -> None:
        """Sets the incarnation that later activities belong to."""
        self._incarnation = incarnation

    def report_activity(
        self,
        activity: str,
        step: int,
        version: int,
        phase: MemberPhase = MemberPhase.WORKING,
    ) -> None:
        """Reports this rank's activity."""
        self.send_event(
            RankActivity(
                activity=activity,
                incarnation=self._incarnation,
                step=step,
                version=version,
                phase=phase,
            )
        )

    def report_alive(self) -> None:
        """Reports a sign of life during a long activity."""
        self.send_event(RankAlive())

    def send_measured(self, name: str, value: float, attributes: Attributes) -> None:
        """Sends a value of an instrument to the service, which exports it."""
        self.send_event(RankMeasured(name=name, value=value, attributes=dict(attributes)))

    def _read_orders(self) -> None:
        for line in self._orders:
            order = ORDERS.validate_json(line)
            match order:
                case StageOrder():
                    self.save.clear()
                    self._pending.put(order)
                case SaveOrder():
                    self.save.set()
                    self._interrupt_poll()
                case StopOrder():
                    self._stop()
        if not self.stop.is_set():
            os._exit(ORPHANED)

    def _stop(self) -> None:
        self.stop.set()
        self._pending.put(None)
        with self._lock:
            for channel in self._channels:
                channel.close()
