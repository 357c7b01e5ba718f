"""The explorer's telemetry: counts for logs and heartbeats, logs of runners, spans and metrics."""

import logging
import statistics
import time
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from services.explorer.types import (
    Assignment,
    Attempt,
    AttemptResult,
    ResultReport,
    RolloutKind,
    WeightsId,
    WeightsVersion,
)
from trinity.api.v1.experience_pb2 import RunResult
from trinity.runtime.folded_log import folded
from trinity.runtime.logs import as_fields
from trinity.runtime.presence import Heartbeats
from trinity.runtime.telemetry import metrics, names, tracing
from trinity.runtime.telemetry.tracing import Span
from trinity.types import Experience, SamplingParams, StageKey
from trinity.types import Sequence as TokenSequence
from trinity.workflows.generation import Generation, Generator, OnDelta, Scores

logger = logging.getLogger(__name__)

DIGITS = 4
_Place = tuple[RolloutKind, int, str]
EXPLORING = "exploring"
RUNNER_LOG_NAME = "explorer_runner_{number}.log"
_OURS = "services."
_current: ContextVar[int | None] = ContextVar("runner", default=None)


@dataclass(slots=True)
class _OpenStep:
    """An explore step or an evaluation of which this explorer has had work."""

    began: float = field(default_factory=time.monotonic)
    last_end: float = 0.0
    num_open: int = 0
    num_tasks: int = 0
    num_failed: int = 0
    rewards: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    metrics: dict[str, list[float]] = field(default_factory=dict)

    def add_experience(self, experience: Experience) -> None:
        if experience.reward is not None:
            self.rewards.append(experience.reward)
        if isinstance(experience.body, TokenSequence):
            self.tokens.append(experience.body.response_length)
        for name, value in experience.metrics.items():
            self.metrics.setdefault(name, []).append(value)

    def figures(self) -> dict[str, float | int]:
        """Returns the metrics of the runs that ended here."""
        figures: dict[str, float | int] = {
            "seconds": round((self.last_end or time.monotonic()) - self.began, 2),
            "tasks": self.num_tasks,
            "experiences": len(self.tokens),
            "failed_attempts": self.num_failed,
        }
        if self.rewards:
            figures |= {
                "reward_mean": round(statistics.fmean(self.rewards), DIGITS),
                "reward_std": round(statistics.pstdev(self.rewards), DIGITS),
                "reward_min": round(min(self.rewards), DIGITS),
                "reward_max": round(max(self.rewards), DIGITS),
            }
        if self.tokens:
            figures["response_tokens_mean"] = round(statistics.fmean(self.tokens), 1)
        means = {name: statistics.fmean(values) for name, values in sorted(self.metrics.items())}
        return figures | as_fields({name: round(mean, DIGITS) for name, mean in means.items()})


class ExploreStepLog:
    """Follows the work of a stage, and logs each step's begin and end.

    steps = ExploreStepLog(tasks_per_step=32)
    steps.begin(assignment)       # "explore step began", with the first of its tasks
    steps.record(result)
    steps.end(assignment)         # "explore step ended", with the last of its tasks
    steps.end_all_but(granted)    # ... or when the buffer grants work of other steps alone

    Where several explorers share a step, each logs its own part.
    """

    def __init__(self, tasks_per_step: int = 0) -> None:
        self._tasks_per_step = tasks_per_step
        self._open: dict[_Place, _OpenStep] = {}

    def begin(self, assignment: Assignment) -> None:
        """Records that the work on a task begins."""
        place = _place(assignment)
        if place not in self._open:
            self._open[place] = _OpenStep()
            logger.info("%s began", _name(place), extra=_about(place))
        step = self._open[place]
        step.num_open += 1
        step.num_tasks += 1
        logger.debug(
            "work on a task began",
            extra={
                **_about(place),
                "assignment": assignment.id,
                "row": assignment.task_index,
                "runs": len(assignment.runs),
            },
        )

    def record(self, result: AttemptResult) -> None:
        """Records the result of one attempt at a run."""
        step = self._open.get(_place(result.attempt.assignment))
        if step is None:
            return
        step.num_failed += not result.is_complete
        for experience in result.experiences:
            step.add_experience(experience)
        logger.debug(
            "a run ended",
            extra={
                "assignment": result.attempt.assignment.id,
                "run": result.attempt.run,
                "attempt": result.attempt.number,
                "seconds": round(result.duration_seconds, 3),
                "rewards": [experience.reward for experience in result.experiences],
                **({"failure": result.failure} if result.failure else {}),
            },
        )

    def end(self, assignment: Assignment) -> None:
        """Records that the work on a task is over, whatever its outcome."""
        place = _place(assignment)
        step = self._open[place]
        step.num_open -= 1
        step.last_end = time.monotonic()
        is_whole = place[0] is RolloutKind.TRAIN and step.num_tasks >= self._tasks_per_step > 0
        if is_whole and not step.num_open:
            self._end(place)

    def end_all_but(self, granted: Iterable[Assignment] = ()) -> None:
        """Ends the steps without open work, except those of work that was granted now."""
        kept = {_place(assignment) for assignment in granted}
        for place in [place for place, step in self._open.items() if not step.num_open]:
            if place not in kept:
                self._end(place)

    def _end(self, place: _Place) -> None:
        step = self._open.pop(place)
        logger.info("%s ended", _name(place), extra={**_about(place), **step.figures()})


def _place(assignment: Assignment) -> _Place:
    is_train = assignment.kind is RolloutKind.TRAIN
    return assignment.kind, assignment.explore_step, "" if is_train else assignment.taskset


def _name(place: _Place) -> str:
    return "explore step" if place[0] is RolloutKind.TRAIN else "evaluation"


def _about(place: _Place) -> dict[str, object]:
    kind, number, taskset = place
    if kind is RolloutKind.TRAIN:
        return {"step": number}
    return {"version": number, "taskset": taskset}


@dataclass(slots=True)
class RolloutCounters:
    """Counters that the rollout work writes and the servicer reads."""

    num_running: int = 0
    num_generated_tokens: int = 0


class CountingGenerator:
    """Wraps a generator and counts the tokens that it generates, whether or not they are used.

    Samples cannot give this count: their tokens between turns are not generated, and some samples
    are never handed in.
    """

    def __init__(self, generator: Generator, counters: RolloutCounters) -> None:
        self._generator = generator
        self._counters = counters

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt."""
        generation = await self._generator.generate(
            prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
        )
        self._counters.num_generated_tokens += len(generation.token_ids)
        return generation

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores given tokens, which are not counted."""
        return await self._generator.score(token_ids, num_likeliest=num_likeliest)


class AbandonsCalls(Protocol):
    """Runs calls that may go on after the wait for their result has ended."""

    @property
    def num_abandoned(self) -> int: ...


class AbandonedCallReporter:
    """Keeps the activity shown in heartbeats up to date."""

    def __init__(self, *, heartbeats: Heartbeats, sources: Sequence[AbandonsCalls]) -> None:
        self._heartbeats = heartbeats
        self._sources = sources
        self._num_abandoned = 0

    def report(self) -> None:
        """Updates the activity with the number of calls of users' code that outlive their run."""
        num_abandoned = sum(source.num_abandoned for source in self._sources)
        if num_abandoned > self._num_abandoned:
            logger.warning(
                "calls of users' code outlive their runs", extra={"calls": num_abandoned}
            )
        self._num_abandoned = num_abandoned
        note = f"; {num_abandoned} calls of users' code outlive their runs" if num_abandoned else ""
        self._heartbeats.set_activity(EXPLORING + note)


@contextmanager
def run_span(attempt: Attempt, weights: WeightsId) -> Iterator[Span]:
    """Opens a run's span in its task's trace, linked to the train step that made its weights."""
    if not tracing.is_on():
        yield tracing.NO_SPAN
        return
    key, assignment = attempt.key, attempt.assignment
    span = tracing.span(
        names.SAMPLE,
        parent=tracing.span_in_task(assignment.id, assignment.traceparent),
        links=[
            tracing.step_span(key.experiment_id, key.stage, weights.incarnation, weights.version)
        ],
        attributes={
            names.RL_RUN: key.experiment_id,
            names.ASSIGNMENT: assignment.id,
            names.RUN: attempt.run,
            names.ATTEMPT: attempt.number,
            names.VERSION: weights.version,
            names.INCARNATION: weights.incarnation,
        },
    )
    with span as entered:
        yield entered


def record_run(span: Span, result: AttemptResult) -> None:
    """Records the end of a run, without its reason, which may quote the user's data."""
    fate = "complete" if result.is_complete else "failed"
    metrics.SAMPLE_SECONDS.record(result.duration_seconds, {names.FATE: fate})
    for experience in result.experiences:
        if experience.reward is not None:
            metrics.REWARD.record(experience.reward)
    span.set(names.FATE, fate)
    span.set(names.NUM_EXPERIENCES, len(result.experiences))
    if not result.is_complete:
        span.fail("the run failed")


def begin_result_span(message: RunResult) -> Span:
    """Begins a span from a result's end to the report on it, and puts its context in the result."""
    if not tracing.is_on():
        return tracing.NO_SPAN
    span = tracing.span(
        names.PUBLISH,
        parent=tracing.span_in_task(message.assignment_id, message.traceparent),
        kind="producer",
        attributes={names.RUN: message.run, names.ATTEMPT: message.attempt},
    )
    message.traceparent = span.traceparent
    return span


def end_result_span(
    span: Span, report: ResultReport, num_sends: int, waited_seconds: float
) -> None:
    """Records the buffer's report on a result."""
    fate = report.outcome.value
    metrics.CONFIRM_SECONDS.record(waited_seconds, {names.FATE: fate})
    span.set(names.FATE, fate)
    span.set(names.NUM_SENDS, num_sends)
    span.end()


def send_span(results: Sequence[Span]) -> AbstractContextManager[Span]:
    """Opens a broker message's span in the trace of its first result, linked to the others'."""
    if not tracing.is_on():
        return tracing.NO_SPAN
    first, *others = (span.place for span in results)
    return tracing.span(
        names.SEND,
        parent=first,
        kind="producer",
        links=[place for place in others if place is not None],
        attributes={names.MESSAGING_SYSTEM: "nats", names.MESSAGING_BATCH: len(results)},
    )


@contextmanager
def load_span(key: StageKey, weights: WeightsVersion) -> Iterator[None]:
    """Opens the span of loading weights, in the trace of the train step that made them."""
    begun = time.perf_counter()
    made_by = tracing.step_span(
        key.experiment_id, key.stage, weights.id.incarnation, weights.id.version
    )
    about = {names.VERSION: weights.id.version, names.INCARNATION: weights.id.incarnation}
    with tracing.span(names.LOAD, parent=made_by, attributes=about):
        yield
    metrics.SYNC_SECONDS.record(time.perf_counter() - begun, {"trinity.sync": "load"})
    metrics.LOADED_VERSION.set(weights.id.version)


class OutboxGauges(Protocol):
    """The results that are not confirmed."""

    def __len__(self) -> int: ...

    @property
    def oldest_seconds(self) -> float: ...


def register_gauges(counters: RolloutCounters, outbox: OutboxGauges) -> None:
    """Registers the gauges of running and unconfirmed work."""
    metrics.ACTIVE_RUNS.register_callback(lambda: [(counters.num_running, {})])
    metrics.OUTBOX_RESULTS.register_callback(lambda: [(len(outbox), {})])
    metrics.OUTBOX_SECONDS.register_callback(lambda: [(outbox.oldest_seconds, {})])


def current_runner() -> int | None:
    """Returns the number of the runner whose workflow is running here; None outside of one."""
    return _current.get()


class RunnerNumbers:
    """Gives each run the least busy of the stage's runners, which names the file of its lines.

    with runners.running():
        logging.getLogger("of a workflow").info("...")  # in the file of the runner
    """

    def __init__(self, num_runners: int) -> None:
        self._runners = [(0, number) for number in range(num_runners)]
        """The runs of each runner, and its number: sorted, so that the least busy is the first."""
        self._num_runs = [0] * num_runners

    @contextmanager
    def running(self) -> Iterator[int]:
        """Takes a runner for the block, also for threads and tasks that are started in it."""
        number = self._runners[0][1]
        self._count(number, 1)
        token = _current.set(number)
        try:
            yield number
        finally:
            _current.reset(token)
            self._count(number, -1)

    def _count(self, number: int, change: int) -> None:
        """Moves a runner to its new place; a search through all would be made for each run."""
        num_runs = self._num_runs[number]
        del self._runners[bisect_left(self._runners, (num_runs, number))]
        self._num_runs[number] = num_runs + change
        insort(self._runners, (num_runs + change, number))


class RunnerRouter(logging.Handler):
    """Writes the lines of runs into the file of their runner, all others where they went before.

    Errors, and the explorer's own lines about a run, are in both. Without a directory all lines
    stay together, and those of runs have the field `runner`.
    """

    def __init__(self, inner: logging.Handler, directory: Path | None) -> None:
        super().__init__()
        self._inner = inner
        self._directory = directory
        self._files: dict[int, logging.Handler] = {}
        self.filters[:] = inner.filters

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record; `logging` holds this handler's lock."""
        number = current_runner()
        if number is None:
            self._inner.handle(record)
        elif self._directory is None:
            record.runner = number
            self._inner.handle(record)
        else:
            self._file(number, self._directory).handle(record)
            if record.name.startswith(_OURS) or record.levelno >= logging.ERROR:
                self._inner.handle(record)

    def flush(self) -> None:
        """Flushes the files and the inner handler."""
        for handler in (self._inner, *self._files.values()):
            handler.flush()

    def close(self) -> None:
        """Closes the files."""
        for handler in (self._inner, *self._files.values()):
            handler.close()
        super().close()

    def _file(self, number: int, directory: Path) -> logging.Handler:
        if number not in self._files:
            path = directory / RUNNER_LOG_NAME.format(number=number)
            file = logging.FileHandler(path, encoding="utf-8", delay=True)
            file.setFormatter(self.formatter)
            self._files[number] = folded(file)
        return self._files[number]


def route_runs(directory: Path | None, formatter: logging.Formatter) -> None:
    """Routes the lines of runs from now on; without a directory they only name their runner."""
    root = logging.getLogger()
    router = RunnerRouter(root.handlers[0], directory)
    router.setFormatter(formatter)
    root.handlers[:] = [router]
