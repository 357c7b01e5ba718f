"""Tracing while it is on: with `exporting`, the only module that uses OpenTelemetry's tracing.

A run writes several spans while others wait for their turn on the event loop. So a span is a few
values here until the exporter's thread converts it to OpenTelemetry's form
(docs/decisions/0051-spans-are-made-where-they-are-sent.md).
"""

import random
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from functools import lru_cache

from opentelemetry.sdk.trace.sampling import ParentBased, Sampler
from opentelemetry.trace import SpanContext, TraceFlags

from trinity.telemetry.places import KEPT, Place
from trinity.telemetry.spans import Attributes, Kind, Span, Value

Record = Callable[["OpenTelemetrySpan"], None]
_current: ContextVar["OpenTelemetrySpan | None"] = ContextVar("current", default=None)


class OpenTelemetrySpan:
    """A `Span`; changes after its end are ignored."""

    __slots__ = (
        "_record",
        "attributes",
        "begun_ns",
        "ended_ns",
        "failure",
        "kind",
        "links",
        "name",
        "parent",
        "place",
    )

    def __init__(
        self,
        name: str,
        place: Place,
        parent: Place | None,
        kind: Kind,
        attributes: Attributes,
        links: Sequence[Place],
        begun_ns: int,
        record: Record,
    ) -> None:
        self.name = name
        self.place = place
        self.parent = parent
        self.kind = kind
        self.attributes = dict(attributes)
        self.links = links
        self.begun_ns = begun_ns
        self.ended_ns = 0
        self.failure: str | None = None
        self._record = record

    @property
    def traceparent(self) -> str:
        """The W3C header's value for this span."""
        return self.place.traceparent

    @property
    def context(self) -> SpanContext:
        """The context that a span processor reads."""
        return context_of(self.place)

    def set(self, name: str, value: Value) -> None:
        """Sets an attribute."""
        if not self.ended_ns:
            self.attributes[name] = value

    def fail(self, reason: str) -> None:
        """Marks the span as failed."""
        if not self.ended_ns:
            self.failure = reason

    def end(self) -> None:
        """Ends the span."""
        if not self.ended_ns:
            self.ended_ns = time.time_ns()
            if self.place.is_sampled:
                self._record(self)


class OpenTelemetryBackend:
    """A `Backend`: passes each ended span that is sampled to `record`."""

    def __init__(self, sampler: Sampler, record: Record) -> None:
        self._follows_parents = isinstance(sampler, ParentBased)
        self._sampler = sampler
        self._is_wanted = lru_cache(maxsize=KEPT)(self._ask_sampler)
        self._record = record

    def begin(
        self,
        name: str,
        *,
        parent: Place | None,
        own: Place | None,
        kind: Kind,
        attributes: Attributes,
        links: Sequence[Place],
        begun_ns: int,
    ) -> OpenTelemetrySpan:
        """Starts a span."""
        if own is None and parent is None and (around := _current.get()) is not None:
            parent = around.place
        if own is not None:
            parent = None
            trace_id, span_id = own.trace_id, own.span_id
        else:
            trace_id = random.getrandbits(128) if parent is None else parent.trace_id
            span_id = random.getrandbits(64)
        place = Place(trace_id or 1, span_id or 1, self._is_sampled(trace_id, parent))
        return OpenTelemetrySpan(
            name, place, parent, kind, attributes, links, begun_ns, self._record
        )

    def enter(self, span: Span) -> Token[OpenTelemetrySpan | None]:
        """Makes a span of this backend the current one."""
        assert isinstance(span, OpenTelemetrySpan)
        return _current.set(span)

    def leave(self, token: object) -> None:
        """Restores the previous current span."""
        assert isinstance(token, Token)
        _current.reset(token)

    def current(self) -> Place | None:
        """Returns the current span, if it is sampled."""
        span = _current.get()
        return span.place if span is not None and span.place.is_sampled else None

    def _is_sampled(self, trace_id: int, parent: Place | None) -> bool:
        """Follows the parent's decision if it is known and counts, else the sampler's."""
        if self._follows_parents and parent is not None and parent.is_sampled is not None:
            return parent.is_sampled
        return self._is_wanted(trace_id)

    def _ask_sampler(self, trace_id: int) -> bool:
        """Samples by the trace's id alone, so that every process and span decides alike."""
        return bool(self._sampler.should_sample(None, trace_id, "").decision.is_sampled())


def context_of(place: Place, *, is_remote: bool = False) -> SpanContext:
    """Converts a place to OpenTelemetry's form."""
    flags = TraceFlags(TraceFlags.SAMPLED if place.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(place.trace_id, place.span_id, is_remote=is_remote, trace_flags=flags)
