"""Metrics of the services; every call does nothing while metrics are off.

    SAMPLE_SECONDS = Histogram("rl.sample.duration", "s", "A run, from its first call to its end")
    SAMPLE_SECONDS.record(1.2, {"trinity.fate": "complete"})

An attribute must have few values: never an id or user text.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.telemetry.tracing import NONE, Attributes

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter
    from opentelemetry.metrics import Observation as OtelObservation

logger = logging.getLogger(__name__)
Observation = tuple[float, Attributes]
Observe = Callable[[], Iterable[Observation]]
Send = Callable[[str, float, Attributes], None]
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


@dataclass(eq=False)
class Instrument:
    """A measured quantity with a unique name; `_record` is set while metrics are on."""

    name: str
    unit: str
    description: str
    bounds: Sequence[float] = field(default=(), kw_only=True)
    kind: ClassVar[InstrumentKind]

    def __post_init__(self) -> None:
        self._record: Callable[[float, Attributes], None] | None = None
        INSTRUMENTS[self.name] = self

    def record(self, value: float = 1, attributes: Attributes = NONE) -> None:
        """Records one value."""
        if self._record is not None:
            self._record(value, attributes)

    def forward_to(self, send: Send) -> None:
        """Starts passing values on by the instrument's name."""
        self._record = partial(send, self.name)

    def bind(self, meter: "Meter | None") -> None:
        """Starts or stops passing values on."""
        about = self.name, self.unit, self.description
        if meter is None:
            self._record = None
        elif self.kind == "counter":
            self._record = meter.create_counter(*about).add
        elif self.kind == "gauge":
            self._record = meter.create_gauge(*about).set
        else:
            self._record = meter.create_histogram(
                *about, explicit_bucket_boundaries_advisory=list(self.bounds) or None
            ).record


INSTRUMENTS: dict[str, Instrument] = {}
"""All instruments, by name."""


class Counter(Instrument):
    """A number that grows."""

    kind = "counter"
    add = Instrument.record


class Histogram(Instrument):
    """The distribution of a value."""

    kind = "histogram"


class Gauge(Instrument):
    """The latest value."""

    kind = "gauge"
    set = Instrument.record


class ObservableGauge(Instrument):
    """Values that are read at each export."""

    kind = "observed"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._observers: list[Observe] = []

    def register_callback(self, observe: Observe) -> None:
        """Registers `observe`, called in a thread at each export; ignored while metrics are off.

        The registering object must live as long as the process.
        """
        if _is_on:
            self._observers.append(observe)

    def bind(self, meter: "Meter | None") -> None:
        """Starts or stops being observed."""
        self._observers.clear()
        if meter is not None:
            meter.create_observable_gauge(self.name, [self._observe], self.unit, self.description)

    def _observe(self, _: "CallbackOptions") -> "Iterable[OtelObservation]":
        from opentelemetry.metrics import Observation as OtelObservation

        for observe in list(self._observers):
            try:
                yield from [OtelObservation(value, about) for value, about in observe()]
            except Exception:  # a failing observer must not silence the others
                logger.exception("a metric could not be observed", extra={"name_": self.name})


_is_on = False

SAMPLE_SECONDS = Histogram("rl.sample.duration", "s", "A run, from start to end", bounds=LONG)
REWARD = Histogram(  # where a bound is negative, Prometheus's client leaves out sum and count
    "rl.reward.value", "{reward}", "Reward of a sample", bounds=(0, 0.25, 0.5, 0.75, 1, 2)
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
LOST_TOKENS = Counter(
    "trinity.rollout.lost_tokens",
    "{token}",
    "Tokens of calls that were ended, and of finished calls of runs that gave no sample",
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
ENGINE_IDLE_SECONDS = Counter(
    "trinity.engine.idle.duration", "s", "Time in which no run had the loaded weights"
)
TRANSFERS = Counter(
    "trinity.weights.transfers", "{transfer}", "Weights taken from memory, or from files after all"
)
DELTAS = Counter(
    "trinity.weights.deltas", "{delta}", "Versions loaded from differences, or not after all"
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
SINCE_STEP_SECONDS = ObservableGauge(
    "trinity.train.since_step", "s", "Since the newest train step, or the stage's begin"
)
PUBLISHED_VERSION = Gauge("trinity.weights.published", "{version}", "Newest version published")
SERVICE_READY = ObservableGauge(
    "trinity.service.ready", "{service}", "1 while all that the service needs is usable, else 0"
)
CREDENTIAL_EXPIRY = ObservableGauge(
    "trinity.credential.expiry_time", "s", "Expiry of certificate, authority, token; since 1970"
)
WAIT_SECONDS = ObservableGauge(
    "trinity.wait.duration", "s", "Waits going on, the longest of each owner and reason"
)


def set_meter(meter: "Meter | None") -> None:
    """Switches metrics on, or off."""
    global _is_on
    _is_on = meter is not None
    for instrument in INSTRUMENTS.values():
        instrument.bind(meter)


def forward_to(send: Send) -> None:
    """Passes each recorded value to another process, which calls `record` with it.

    What is read at each export is left out: it is of the process.
    """
    global _is_on
    _is_on = True
    for instrument in INSTRUMENTS.values():
        instrument.forward_to(send)


def record(name: str, value: float, attributes: Attributes) -> None:
    """Records a value of the instrument of this name."""
    INSTRUMENTS[name].record(value, attributes)


def is_on() -> bool:
    """Returns true while metrics are kept."""
    return _is_on


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
