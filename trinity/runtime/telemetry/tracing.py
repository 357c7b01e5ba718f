"""Spans of the services; ids of span contexts derive from the work, so no process stores them.

The trace of a task and its first span have the same ids in every process and after every restart:
both are hashes of the assignment's id. A train step's ids follow from its place in the experiment.
Any process that holds the work knows the trace; the next explorer needs no state of a killed one.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

if TYPE_CHECKING:
    from trinity.runtime.telemetry.sdk import SdkTracer

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)
_SAMPLED = 1
CACHE_SIZE = 4096
"""Size of the cache: the same places are requested repeatedly."""
Value = str | int | float | bool
Attributes = Mapping[str, Value]
Kind = Literal["internal", "producer", "consumer", "client", "server"]
MAX_LINKS = 128
NONE: Attributes = {}


@dataclass(frozen=True, slots=True)
class SpanContextRef:
    """The context of a span, as other processes refer to it."""

    trace_id: int
    span_id: int
    is_sampled: bool | None = None
    """None if it follows from the trace's id alone: every process decides alike."""

    @property
    def trace_hex(self) -> str:
        """The trace's id in hexadecimal."""
        return f"{self.trace_id:032x}"

    @property
    def span_hex(self) -> str:
        """The span's id in hexadecimal."""
        return f"{self.span_id:016x}"

    @property
    def traceparent(self) -> str:
        """The W3C header's value."""
        return f"00-{self.trace_hex}-{self.span_hex}-{int(bool(self.is_sampled)):02x}"


class Span:
    """An interval of work. This class does nothing, as while tracing is off.

    with tracing.span("rl.train") as span:  # the current one in the block, failed by an exception
        span.set("trinity.rows", 3)
    """

    __slots__ = ()

    @property
    def place(self) -> SpanContextRef | None:
        """The span's context; None while tracing is off."""
        return None

    @property
    def traceparent(self) -> str:
        """The W3C header's value; empty while tracing is off."""
        place = self.place
        return "" if place is None else place.traceparent

    def set(self, name: str, value: Value) -> None:
        """Sets an attribute."""

    def fail(self, reason: str) -> None:
        """Marks the span as failed."""

    def end(self) -> None:
        """Ends the span; later calls have no effect."""

    def attach(self) -> None:
        """Makes the span the current one until the running task ends."""

    def attached(self) -> AbstractContextManager[object]:
        """Makes the span the current one within the block, without ending it."""
        return nullcontext()

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        pass


class SpanOptions(TypedDict, total=False):
    """Options of a new span."""

    parent: SpanContextRef | None
    """The current span without it."""
    own: SpanContextRef | None
    """Begins a trace whose id, and whose first span's id, are known beforehand."""
    kind: Kind
    attributes: Attributes
    links: Sequence[SpanContextRef]
    begun_ns: int


NO_SPAN = Span()
_tracer: "SdkTracer | None" = None


def task_span(assignment_id: str) -> SpanContextRef:
    """Returns the span that begins the trace of a task."""
    return _derived(f"task/{assignment_id}")


def span_in_task(assignment_id: str, traceparent: str) -> SpanContextRef:
    """Returns the place in a header if it is in the task's trace, else the trace's first.

    A header that came with a message is untrusted.
    """
    task = task_span(assignment_id)
    named = parse_traceparent(traceparent)
    return named if named is not None and named.trace_id == task.trace_id else task


def step_span(experiment_id: str, stage: str, incarnation: int, step: int) -> SpanContextRef:
    """Returns the span of a train step, and of the weights version with its number."""
    return _derived(f"step/{experiment_id}/{stage}/{incarnation}/{step}")


def parse_traceparent(traceparent: str) -> SpanContextRef | None:
    """Returns the place that a header names, or None."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return SpanContextRef(trace_id, span_id, bool(flags & _SAMPLED))


@lru_cache(maxsize=CACHE_SIZE)
def _derived(name: str) -> SpanContextRef:
    digest = hashlib.blake2b(name.encode(), digest_size=24, person=b"trinity-trace").digest()
    return SpanContextRef(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1)


def set_tracer(tracer: "SdkTracer | None") -> None:
    """Switches tracing on, or off."""
    global _tracer
    _tracer = tracer


def is_on() -> bool:
    """Returns true while tracing is on."""
    return _tracer is not None


def span(name: str, **options: Unpack[SpanOptions]) -> Span:
    """Starts a span, which its block or `end` ends."""
    return NO_SPAN if _tracer is None else _tracer.span(name, options)


def record_span(name: str, **options: Unpack[SpanOptions]) -> str:
    """Records a span that ends now; returns its traceparent."""
    done = span(name, **options)
    done.end()
    return done.traceparent


def current() -> SpanContextRef | None:
    """Returns the current span, if it is sampled."""
    return None if _tracer is None else _tracer.current()


def headers() -> dict[str, str]:
    """Returns the message headers by which a receiver knows the current span."""
    place = current()
    return {} if place is None else {"traceparent": place.traceparent}
