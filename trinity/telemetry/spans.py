"""What a span is to those who write one, and what makes spans while tracing is on."""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from trinity.telemetry.places import Place

Value = str | int | float | bool
Attributes = Mapping[str, Value]
Kind = Literal["internal", "producer", "consumer", "client", "server"]


class Span(Protocol):
    """An interval that goes on."""

    @property
    def place(self) -> Place | None:
        """Where it is; None while tracing is off."""
        ...

    @property
    def traceparent(self) -> str:
        """How others name it; empty while tracing is off."""
        ...

    def set(self, name: str, value: Value) -> None:
        """Say something about it."""
        ...

    def fail(self, reason: str) -> None:
        """Say that it went wrong."""
        ...

    def end(self) -> None:
        """It is over; said again, nothing happens."""
        ...


class Backend(Protocol):
    """What makes spans while tracing is on."""

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
