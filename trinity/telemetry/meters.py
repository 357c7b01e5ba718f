"""Metrics while they are on: the only module that uses OpenTelemetry's instruments."""

import logging
from collections.abc import Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from trinity.telemetry.metrics import Instrument, Observe, Sink

logger = logging.getLogger(__name__)


class OpenTelemetryMeters:
    """A `Meters` of OpenTelemetry."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def sink(self, instrument: Instrument) -> Sink:
        """Returns the function that records an instrument's values."""
        name, unit, about = instrument.name, instrument.unit, instrument.description
        match instrument.kind:
            case "counter":
                return self._meter.create_counter(name, unit, about).add
            case "gauge":
                return self._meter.create_gauge(name, unit, about).set
            case _:
                bounds = list(instrument.bounds) or None
                return self._meter.create_histogram(
                    name, unit, about, explicit_bucket_boundaries_advisory=bounds
                ).record

    def observe(self, instrument: Instrument, observers: Sequence[Observe]) -> None:
        """Calls the functions that are in `observers` at each export."""

        def ask(_: CallbackOptions) -> Iterable[Observation]:
            for observe in list(observers):
                try:
                    yield from [Observation(value, about) for value, about in observe()]
                except Exception:  # a failing observer must not silence the others
                    logger.exception(
                        "a metric could not be observed", extra={"name_": instrument.name}
                    )

        self._meter.create_observable_gauge(
            instrument.name, [ask], instrument.unit, instrument.description
        )
