"""Figures, as the services give them; every call does nothing while metrics are off.

    SAMPLE_SECONDS = Histogram("rl.sample.duration", "s", "A run, from its first call to its end")
    SAMPLE_SECONDS.record(1.2, {"trinity.fate": "complete"})

An attribute's values must be few: never an id, never a person's text.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from trinity.telemetry.tracing import NONE, Attributes

Observation = tuple[float, Attributes]
Observe = Callable[[], Iterable[Observation]]
InstrumentKind = Literal["counter", "histogram", "gauge", "observed"]


class Sink(Protocol):
    """Takes figures of one name."""

    def __call__(self, value: float, attributes: Attributes, /) -> None: ...


class Meters(Protocol):
    """What keeps figures while metrics are on."""

    def sink(self, instrument: "Instrument") -> Sink: ...

    def observe(self, instrument: "Instrument", observers: Sequence[Observe]) -> None: ...


class Instrument:
    """Something that is measured, under one name."""

    kind: InstrumentKind

    def __init__(
        self, name: str, unit: str, description: str, *, bounds: Sequence[float] = ()
    ) -> None:
        self.name = name
        self.unit = unit
        self.description = description
        self.bounds = bounds
        self._sink: Sink | None = None
        INSTRUMENTS[name] = self

    def bind(self, meters: Meters | None) -> None:
        """Begin to give figures on, or cease."""
        self._sink = None if meters is None else meters.sink(self)


INSTRUMENTS: dict[str, Instrument] = {}
"""All there are, by name."""


class Counter(Instrument):
    """A number that grows."""

    kind = "counter"

    def add(self, number: float = 1, attributes: Attributes = NONE) -> None:
        """Count."""
        if self._sink is not None:
            self._sink(number, attributes)


class Histogram(Instrument):
    """How a figure is spread."""

    kind = "histogram"

    def record(self, value: float, attributes: Attributes = NONE) -> None:
        """One more value."""
        if self._sink is not None:
            self._sink(value, attributes)


class Gauge(Instrument):
    """A figure as it was last told."""

    kind = "gauge"

    def set(self, value: float, attributes: Attributes = NONE) -> None:
        """It is this now."""
        if self._sink is not None:
            self._sink(value, attributes)


class Observed(Instrument):
    """Figures that are asked for when they are sent."""

    kind = "observed"

    def __init__(self, name: str, unit: str, description: str) -> None:
        super().__init__(name, unit, description)
        self._observers: list[Observe] = []

    def by(self, observe: Observe) -> None:
        """Ask `observe`, from a thread, whenever figures are sent; forgotten while metrics are off.

        Whoever registers lives as long as the process.
        """
        if _meters is not None:
            self._observers.append(observe)

    def bind(self, meters: Meters | None) -> None:
        """Begin to be asked, or cease."""
        self._observers.clear()
        if meters is not None:
            meters.observe(self, self._observers)


_meters: Meters | None = None


def use(meters: Meters | None) -> None:
    """Switch metrics on, or off."""
    global _meters
    _meters = meters
    if meters is not None:
        from trinity.telemetry import instruments  # noqa: F401  # so that all of them exist
    for instrument in INSTRUMENTS.values():
        instrument.bind(meters)


def is_on() -> bool:
    """Whether figures are kept."""
    return _meters is not None
