"""Tracing API of the services; every function does nothing while tracing is off.

with tracing.span(names.SAMPLE, parent=place, attributes={names.RUN: 3}) as span:
    ...                       # spans begun in here are its children
    span.set(names.REWARD, 1.0)

span = tracing.begin(names.PUBLISH, parent=place)   # ends elsewhere
span.end()
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from trinity.telemetry.places import Place
from trinity.telemetry.spans import Attributes, Backend, Kind, Span, Value

__all__ = ["Attributes", "Kind", "Span", "Value"]

MAX_LINKS = 128
NONE: Attributes = {}


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


def use(backend: Backend | None) -> None:
    """Switches tracing on, or off."""
    global _backend
    _backend = backend


def is_on() -> bool:
    """Returns true while tracing is on."""
    return _backend is not None


def begin(
    name: str,
    *,
    parent: Place | None = None,
    own: Place | None = None,
    kind: Kind = "internal",
    attributes: Attributes = NONE,
    links: Sequence[Place] = (),
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
    parent: Place | None = None,
    own: Place | None = None,
    kind: Kind = "internal",
    attributes: Attributes = NONE,
    links: Sequence[Place] = (),
) -> "_NoSpan | _Entered":
    """Opens a span around a block, in which it is the current one; an exception fails it."""
    if _backend is None:
        return NO_SPAN
    begun = begin(name, parent=parent, own=own, kind=kind, attributes=attributes, links=links)
    return _Entered(_backend, begun)


def record(
    name: str,
    begun_ns: int,
    *,
    parent: Place | None = None,
    own: Place | None = None,
    kind: Kind = "internal",
    attributes: Attributes = NONE,
    links: Sequence[Place] = (),
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
def within(span: Span) -> Iterator[None]:
    """Makes an active span the current one within the block."""
    if _backend is None:
        yield
        return
    token = _backend.enter(span)
    try:
        yield
    finally:
        _backend.leave(token)


def enter(span: Span) -> None:
    """Makes a span the current one until the running task ends."""
    if _backend is not None:
        _backend.enter(span)


def current() -> Place | None:
    """Returns the current span, if it is sampled."""
    return None if _backend is None else _backend.current()


def headers() -> dict[str, str]:
    """Returns the message headers by which a receiver knows the current span."""
    place = current()
    return {} if place is None else {"traceparent": place.traceparent}


def now_ns() -> int:
    """Returns the current time, for `begun_ns`."""
    return time.time_ns()


class _Entered:
    """The block of a span."""

    __slots__ = ("_backend", "_span", "_token")

    def __init__(self, backend: Backend, span: Span) -> None:
        self._backend = backend
        self._span = span

    def __enter__(self) -> Span:
        self._token = self._backend.enter(self._span)
        return self._span

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._backend.leave(self._token)
        if error is not None:
            self._span.fail(type(error).__name__)
        self._span.end()
