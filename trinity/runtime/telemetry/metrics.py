"""Metrics of the services; every call does nothing while metrics are off.

    SAMPLE_SECONDS = Histogram("rl.sample.duration", "s", "A run, from its first call to its end")
    SAMPLE_SECONDS.record(1.2, {"trinity.fate": "complete"})

An attribute must have few values: never an id or user text.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.telemetry.tracing import NONE, Attributes

Observation = tuple[float, Attributes]
Observe = Callable[[], Iterable[Observation]]
InstrumentKind = Literal["counter", "histogram", "gauge", "observed"]
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
AGES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
MAX_REASON_CHARACTERS = 60
MAX_REASONS = 200
OTHER = "other"
_PARTICULAR = re.compile(r"[0-9a-fA-F]{8}[0-9a-fA-F-]*|\S*[/\\]\S*|'[^']*'|\d+(?:\.\d+)?")
_known: set[str] = set()


class Sink(Protocol):
    """Records values of one instrument."""

    def __call__(self, value: float, attributes: Attributes, /) -> None: ...


class MetricsBackend(Protocol):
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

    def bind(self, meters: MetricsBackend | None) -> None:
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


class ObservableGauge(Instrument):
    """Values that are read at each export."""

    kind = "observed"

    def __init__(self, name: str, unit: str, description: str) -> None:
        super().__init__(name, unit, description)
        self._observers: list[Observe] = []

    def register_callback(self, observe: Observe) -> None:
        """Registers `observe`, called in a thread at each export; ignored while metrics are off.

        The registering object must live as long as the process.
        """
        if _meters is not None:
            self._observers.append(observe)

    def bind(self, meters: MetricsBackend | None) -> None:
        """Starts or stops being observed."""
        self._observers.clear()
        if meters is not None:
            meters.observe(self, self._observers)


_meters: MetricsBackend | None = None

SAMPLE_SECONDS = Histogram("rl.sample.duration", "s", "A run, from start to end", bounds=LONG)
REWARD = Histogram(
    "rl.reward.value", "1", "Reward of a sample", bounds=(-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 2)
)
REWARD_FAILURES = Counter(
    "trinity.reward.failures",
    "{call}",
    "Calls of rewards that raised, or returned no finite number",
)
LOOP_SECONDS = Histogram(
    "rl.loop.duration", "s", "A train step with its wait for the batch", bounds=LONG
)
TRAIN_SECONDS = Histogram("rl.train.duration", "s", "A train step's training", bounds=LONG)
SYNC_SECONDS = Histogram("rl.sync.duration", "s", "Weights published or loaded", bounds=LONG)
GENERATE_SECONDS = Histogram(
    "gen_ai.client.operation.duration", "s", "A call of the rollout engine", bounds=LONG
)
GENERATE_TOKENS = Histogram(
    "gen_ai.client.token.usage", "{token}", "Tokens in and out of a call", bounds=TOKENS
)
SERVER_SECONDS = Histogram("rpc.server.call.duration", "s", "A call answered", bounds=SHORT)
CLIENT_SECONDS = Histogram("rpc.client.call.duration", "s", "A call made", bounds=SHORT)
ACTIVE_RUNS = ObservableGauge("trinity.explorer.runs", "{run}", "Runs leased and not over")
OUTBOX_RESULTS = ObservableGauge(
    "trinity.explorer.unconfirmed", "{result}", "Results whose commit is not reported yet"
)
OUTBOX_SECONDS = ObservableGauge(
    "trinity.explorer.unconfirmed.age", "s", "For how long the oldest of them has waited"
)
CONFIRM_SECONDS = Histogram(
    "trinity.publish.duration", "s", "From a result's end to the report of its commit", bounds=LONG
)
GATE_SECONDS = Histogram(
    "trinity.weights.wait.duration", "s", "A run's wait for the weights it needs", bounds=LONG
)
TRANSFERS = Counter(
    "trinity.weights.transfers", "{transfer}", "Weights taken from memory, or from files after all"
)
LOADED_VERSION = Gauge("trinity.weights.loaded", "{version}", "Version in the engine")
ASSIGNMENTS_LEASED = Counter("trinity.lease.assignments", "{assignment}", "Assignments handed out")
CREDIT = ObservableGauge(
    "trinity.credit.rows", "{row}", "Rows that may still be outstanding or ready"
)
OUTSTANDING = ObservableGauge(
    "trinity.rows.outstanding", "{row}", "Runs and rows on their way to a batch"
)
READY = ObservableGauge("trinity.rows.ready", "{row}", "Rows that wait for a batch")
STREAM_PENDING = ObservableGauge("trinity.stream.pending", "{message}", "Messages not stored yet")
LOOP_FAILURES = Counter(
    "trinity.loop.failures", "{failure}", "Failures of a process's loops, which are started again"
)
STORED = Counter("trinity.store.results", "{result}", "Results stored, by what became of them")
STORE_SECONDS = Histogram(
    "trinity.store.duration", "s", "A transaction that stores results", bounds=SHORT
)
GROUPS_SHAPED = Counter("trinity.pipeline.groups", "{group}", "Groups shaped")
SHAPE_SECONDS = Histogram(
    "trinity.pipeline.duration", "s", "Groups shaped together, to their commit", bounds=SHORT
)
BATCH_ROWS = Counter("trinity.batch.rows", "{row}", "Rows composed into batches")
STALENESS = Histogram(
    "trinity.batch.staleness", "{version}", "Train step less a row's oldest version", bounds=AGES
)
TRAINED_TOKENS = Counter("trinity.train.tokens", "{token}", "Tokens of trained batches")
BATCH_WAIT_SECONDS = Histogram(
    "trinity.batch.wait.duration", "s", "A train step's wait for its batch", bounds=LONG
)
TRAINED_STEP = Gauge("trinity.train.step", "{step}", "Newest train step reported")
WAIT_SECONDS = ObservableGauge(
    "trinity.wait.duration", "s", "Waits going on, the longest of each owner and reason"
)


def set_backend(meters: MetricsBackend | None) -> None:
    """Switches metrics on, or off."""
    global _meters
    _meters = meters
    for instrument in INSTRUMENTS.values():
        instrument.bind(meters)


def is_on() -> bool:
    """Returns true while metrics are kept."""
    return _meters is not None


def observe_waits(waits: Callable[[], Iterable[pb.Wait]]) -> None:
    """Measures the waits at each export."""
    WAIT_SECONDS.register_callback(lambda: longest_waits(waits()))


def longest_waits(waits: Iterable[pb.Wait]) -> list[Observation]:
    """Returns the seconds of the longest wait of each owner, target and reason."""
    longest: dict[tuple[str, str, str], float] = {}
    for wait in waits:
        key = (wait.owner, wait.waits_for, _kind_of(wait.reason))
        longest[key] = max(longest.get(key, 0.0), wait.waited_seconds)
    return [
        (seconds, {"trinity.wait.owner": owner, "trinity.wait.for": for_, "trinity.reason": reason})
        for (owner, for_, reason), seconds in longest.items()
    ]


def _kind_of(reason: str) -> str:
    """Returns one text for all reasons of a kind; a limit guards against too many kinds."""
    kind = _PARTICULAR.sub("*", reason.split(":")[0])[:MAX_REASON_CHARACTERS]
    if kind not in _known and len(_known) >= MAX_REASONS:
        return OTHER
    _known.add(kind)
    return kind
