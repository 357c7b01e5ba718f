"""Spans of the services; ids of span contexts derive from the work, so no process stores them.

The trace of a task and its first span have the same ids in every process and after every restart:
both are hashes of the assignment's id. A train step's ids follow from its place in the experiment.
Any process that holds the work knows the trace; a killed explorer leaves nothing that the next one
needs.
"""

import hashlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
CACHE_SIZE = 4096
"""Size of the cache: the same places are requested repeatedly."""
Value = str | int | float | bool
Attributes = Mapping[str, Value]
Kind = Literal["internal", "producer", "consumer", "client", "server"]
MAX_LINKS = 128
NONE: Attributes = {}
__all__ = ["Attributes", "Kind", "Span", "Value"]


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
    if found is None or found[0].startswith("ff"):
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return SpanContextRef(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED))


@lru_cache(maxsize=CACHE_SIZE)
def _derived(name: str) -> SpanContextRef:
    digest = hashlib.blake2b(name.encode(), digest_size=24, person=b"trinity-trace").digest()
    return SpanContextRef(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1)


class Span(Protocol):
    """An active interval."""

    @property
    def place(self) -> SpanContextRef | None:
        """The span's context; None while tracing is off."""
        ...

    @property
    def traceparent(self) -> str:
        """The W3C header's value; empty while tracing is off."""
        ...

    def set(self, name: str, value: Value) -> None:
        """Sets an attribute."""
        ...

    def fail(self, reason: str) -> None:
        """Marks the span as failed."""
        ...

    def end(self) -> None:
        """Ends the span; later calls do nothing."""
        ...


class Backend(Protocol):
    """Creates spans while tracing is on."""

    def begin(
        self,
        name: str,
        *,
        parent: SpanContextRef | None,
        own: SpanContextRef | None,
        kind: Kind,
        attributes: Attributes,
        links: Sequence[SpanContextRef],
        begun_ns: int,
    ) -> Span: ...

    def attach(self, span: Span) -> object: ...

    def detach(self, token: object) -> None: ...

    def current(self) -> SpanContextRef | None: ...


class _NoSpan:
    """Stands in for every span while tracing is off."""

    __slots__ = ()
    place = None
    traceparent = ""

    def set(self, name: str, value: Value) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def end(self) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NO_SPAN = _NoSpan()
_backend: Backend | None = None


def set_backend(backend: Backend | None) -> None:
    """Switches tracing on, or off."""
    global _backend
    _backend = backend


def is_on() -> bool:
    """Returns true while tracing is on."""
    return _backend is not None


def begin(
    name: str,
    *,
    parent: SpanContextRef | None = None,
    own: SpanContextRef | None = None,
    kind: Kind = "internal",
    attributes: Attributes = NONE,
    links: Sequence[SpanContextRef] = (),
    begun_ns: int = 0,
) -> Span:
    """Starts a span that the caller ends.

    Its parent is the given one, else the current one. `own` starts a trace whose id, and whose
    first span's id, are known beforehand.
    """
    if _backend is None:
        return NO_SPAN
    return _backend.begin(
        name,
        parent=parent,
        own=own,
        kind=kind,
        attributes=attributes,
        links=links[:MAX_LINKS],
        begun_ns=begun_ns or time.time_ns(),
    )


def span(
    name: str,
    *,
    parent: SpanContextRef | None = None,
    own: SpanContextRef | None = None,
    kind: Kind = "internal",
    attributes: Attributes = NONE,
    links: Sequence[SpanContextRef] = (),
) -> "_NoSpan | _SpanBlock":
    """Opens a span around a block, in which it is the current one; an exception fails it."""
    if _backend is None:
        return NO_SPAN
    begun = begin(name, parent=parent, own=own, kind=kind, attributes=attributes, links=links)
    return _SpanBlock(_backend, begun)


def record_span(
    name: str,
    begun_ns: int,
    *,
    parent: SpanContextRef | None = None,
    own: SpanContextRef | None = None,
    kind: Kind = "internal",
    attributes: Attributes = NONE,
    links: Sequence[SpanContextRef] = (),
) -> str:
    """Records a span that ends now; returns its traceparent."""
    if _backend is None:
        return ""
    done = begin(
        name,
        parent=parent,
        own=own,
        kind=kind,
        attributes=attributes,
        links=links,
        begun_ns=begun_ns,
    )
    done.end()
    return done.traceparent


@contextmanager
def use_span(span: Span) -> Iterator[None]:
    """Makes an active span the current one within the block."""
    if _backend is None:
        yield
        return
    token = _backend.attach(span)
    try:
        yield
    finally:
        _backend.detach(token)


def set_current_span(span: Span) -> None:
    """Makes a span the current one until the running task ends."""
    if _backend is not None:
        _backend.attach(span)


def current() -> SpanContextRef | None:
    """Returns the current span, if it is sampled."""
    return None if _backend is None else _backend.current()


def headers() -> dict[str, str]:
    """Returns the message headers by which a receiver knows the current span."""
    place = current()
    return {} if place is None else {"traceparent": place.traceparent}


def now_ns() -> int:
    """Returns the current time, for `begun_ns`."""
    return time.time_ns()


class _SpanBlock:
    """The block of a span."""

    __slots__ = ("_backend", "_span", "_token")

    def __init__(self, backend: Backend, span: Span) -> None:
        self._backend = backend
        self._span = span

    def __enter__(self) -> Span:
        self._token = self._backend.attach(self._span)
        return self._span

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._backend.detach(self._token)
        if error is not None:
            self._span.fail(type(error).__name__)
        self._span.end()
