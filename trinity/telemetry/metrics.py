"""Metrics of the services; every call does nothing while metrics are off.

    SAMPLE_SECONDS = Histogram("rl.sample.duration", "s", "A run, from its first call to its end")
    SAMPLE_SECONDS.record(1.2, {"trinity.fate": "complete"})

An attribute must have few values: never an id or user text.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from trinity.telemetry.tracing import NONE, Attributes

Observation = tuple[float, Attributes]
Observe = Callable[[], Iterable[Observation]]
InstrumentKind = Literal["counter", "histogram", "gauge", "observed"]


class Sink(Protocol):
    """Records values of one instrument."""

    def __call__(self, value: float, attributes: Attributes, /) -> None: ...


class Meters(Protocol):
    """A backend that keeps metrics while they are on."""

    def sink(self, instrument: "Instrument") -> Sink: ...

    def observe(self, instrument: "Instrument", observers: Sequence[Observe]) -> None: ...


class Instrument:
    """A measured quantity with a unique name."""

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
        """Starts or stops passing values on."""
        self._sink = None if meters is None else meters.sink(self)


INSTRUMENTS: dict[str, Instrument] = {}
"""All instruments, by name."""


class Counter(Instrument):
    """A number that grows."""

    kind = "counter"

    def add(self, number: float = 1, attributes: Attributes = NONE) -> None:
        """Adds to the counter."""
        if self._sink is not None:
            self._sink(number, attributes)


class Histogram(Instrument):
    """The distribution of a value."""

    kind = "histogram"

    def record(self, value: float, attributes: Attributes = NONE) -> None:
        """Records one value."""
        if self._sink is not None:
            self._sink(value, attributes)


class Gauge(Instrument):
    """The latest value."""

    kind = "gauge"

    def set(self, value: float, attributes: Attributes = NONE) -> None:
        """Sets the value."""
        if self._sink is not None:
            self._sink(value, attributes)


class Observed(Instrument):
    """Values that are read at each export."""

    kind = "observed"

    def __init__(self, name: str, unit: str, description: str) -> None:
        super().__init__(name, unit, description)
        self._observers: list[Observe] = []

    def by(self, observe: Observe) -> None:
        """Registers `observe`, called in a thread at each export; ignored while metrics are off.

        The registering object must live as long as the process.
        """
        if _meters is not None:
            self._observers.append(observe)

    def bind(self, meters: Meters | None) -> None:
        """Starts or stops being observed."""
        self._observers.clear()
        if meters is not None:
            meters.observe(self, self._observers)


_meters: Meters | None = None


def use(meters: Meters | None) -> None:
    """Switches metrics on, or off."""
    global _meters
    _meters = meters
    if meters is not None:
        from trinity.telemetry import instruments  # noqa: F401  # so that all of them exist
    for instrument in INSTRUMENTS.values():
        instrument.bind(meters)


def is_on() -> bool:
    """Returns true while metrics are kept."""
    return _meters is not None
