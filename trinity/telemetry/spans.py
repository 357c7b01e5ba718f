"""Protocols of spans and of the backend that creates them while tracing is on."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from trinity.telemetry.places import Place

Value = str | int | float | bool
Attributes = Mapping[str, Value]
Kind = Literal["internal", "producer", "consumer", "client", "server"]


class Span(Protocol):
    """An active interval."""

    @property
    def place(self) -> Place | None:
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
        parent: Place | None,
        own: Place | None,
        kind: Kind,
        attributes: Attributes,
        links: Sequence[Place],
        begun_ns: int,
    ) -> Span: ...

    def enter(self, span: Span) -> object: ...

    def leave(self, token: object) -> None: ...

    def current(self) -> Place | None: ...
