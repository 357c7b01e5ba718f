"""Scores of tasks, version by version: heat map, orders of tasks, pairs of evaluations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.studio.connection import OpenRun

MAX_COLUMNS = 16
"""Columns of the heat map; more versions share a column."""
REWARD = "reward"
MANY_SECONDS = 3 * CALL_SECONDS
"""Deadline of a call that reads all samples of up to 10,000 tasks."""
UNSCORED = "?"
"""Stands for runs without a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The runs of one task, with one version or over several."""

    num_runs: int = 0
    num_scored: int = 0
    num_passed: int = 0
    mean: float | None = None

    @property
    def pass_rate(self) -> float | None:
        """The share of scored runs that passed; None without scored runs."""
        return self.num_passed / self.num_scored if self.num_scored else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHistory:
    """One task with its scores by version, the oldest first."""

    taskset: str
    index: int
    num_draws: int
    """Drawings in the whole stage."""
    versions: Mapping[int, Score]

    @property
    def name(self) -> str:
        """The task as conditions name it."""
        return f"{self.taskset}:{self.index}"

    @property
    def total(self) -> Score:
        """The runs of all versions."""
        return combined(self.versions.values())

    @property
    def num_flips(self) -> int:
        """The number of changes from solved to unsolved or back, from one version to the next.

        A version solves a task if at least half of its runs pass.
        """
        rates = [score.pass_rate for score in self.versions.values()]
        solved = [rate >= 0.5 for rate in rates if rate is not None]
        return sum(before != after for before, after in pairwise(solved))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """The tasks of an answer, and how much of the stage it covers."""

    tasks: tuple[TaskHistory, ...] = ()
    num_draws: int = 0
    num_draws_read: int = 0

    @property
    def versions(self) -> tuple[int, ...]:
        """All versions with a score."""
        return tuple(sorted({version for task in self.tasks for version in task.versions}))

    @property
    def is_cut(self) -> bool:
        """True if older drawings of tasks were not looked at."""
        return self.num_draws_read < self.num_draws


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreQuestion:
    """A question about the tasks of a stage."""

    taskset: str = ""
    """Of evaluations; empty for the tasks trained on."""
    metric: str = REWARD
    pass_score: float = 1.0
    versions: tuple[int, ...] = ()

    @property
    def kind(self) -> buffer_pb2.AssignmentKind:
        """The purpose of the drawings."""
        if self.taskset:
            return buffer_pb2.ASSIGNMENT_KIND_EVAL
        return buffer_pb2.ASSIGNMENT_KIND_TRAIN


async def ask_scores(
    opened: OpenRun, stage: buffer_pb2.StageKey, question: ScoreQuestion
) -> ScoreTable:
    """Returns the scores of a stage's tasks.

    Raises: TrinityError.
    """
    request = query_pb2.ListTaskScoresRequest(
        key=stage,
        kind=question.kind,
        taskset=question.taskset,
        versions=question.versions,
        metric="" if question.metric == REWARD else question.metric,
        pass_score=question.pass_score,
    )
    head = query_pb2.TaskScoresHead()
    tasks: list[TaskHistory] = []
    with translate_rpc_errors():
        async for message in opened.queries.ListTaskScores(request, timeout=MANY_SECONDS):
            if message.WhichOneof("part") == "head":
                head = message.head
            tasks += map(_task, message.page.tasks)
    return ScoreTable(
        tasks=tuple(tasks), num_draws=head.num_draws, num_draws_read=head.num_draws_read
    )


def _task(message: query_pb2.TaskScores) -> TaskHistory:
    return TaskHistory(
        taskset=message.taskset,
        index=message.task_index,
        num_draws=message.num_draws,
        versions={
            score.version: Score(
                num_runs=score.num_runs,
                num_scored=score.num_scored,
                num_passed=score.num_passed,
                mean=score.mean if score.num_scored else None,
            )
            for score in message.versions
        },
    )


def combined(scores: Iterable[Score]) -> Score:
    """Returns the score of the runs of all these."""
    listed = list(scores)
    num_scored = sum(score.num_scored for score in listed)
    total = sum(score.num_scored * (score.mean or 0.0) for score in listed)
    return Score(
        num_runs=sum(score.num_runs for score in listed),
        num_scored=num_scored,
        num_passed=sum(score.num_passed for score in listed),
        mean=total / num_scored if num_scored else None,
    )


def short_names(tasks: Iterable[TaskHistory]) -> dict[str, str]:
    """Returns the names to show, by full name: the row alone where all are of one taskset."""
    listed = list(tasks)
    is_one = len({task.taskset for task in listed}) < 2
    return {task.name: f"{task.index:,}" if is_one else task.name for task in listed}


class TaskOrder(StrEnum):
    """An order of tasks; the last one leaves tasks out, too."""

    HARDEST = "hardest"
    EASIEST = "easiest"
    FLIPPING = "flipping"
    DRAWN = "most drawn"
    NEVER = "never solved"


def ordered_tasks(table: ScoreTable, order: TaskOrder) -> list[TaskHistory]:
    """Returns the tasks in an order, each of them measured; equal ones by their rows."""
    tasks = [task for task in table.tasks if task.total.num_scored]
    if order is TaskOrder.NEVER:
        tasks = [task for task in tasks if not task.total.num_passed]
    if order is TaskOrder.FLIPPING:
        tasks = [task for task in tasks if task.num_flips]
    return sorted(tasks, key=_KEYS[order])


def _mean(task: TaskHistory) -> tuple[float, float]:
    total = task.total
    return total.pass_rate or 0.0, total.mean or 0.0


_KEYS: Mapping[TaskOrder, Callable[[TaskHistory], tuple[float, ...]]] = {
    TaskOrder.HARDEST: lambda task: (*_mean(task), -task.total.num_scored),
    TaskOrder.EASIEST: lambda task: (*(-part for part in _mean(task)), -task.total.num_scored),
    TaskOrder.FLIPPING: lambda task: (-task.num_flips, -task.total.num_scored),
    TaskOrder.DRAWN: lambda task: (-task.num_draws, -task.total.num_scored),
    TaskOrder.NEVER: lambda task: (-task.total.num_scored, *_mean(task)),
}


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions that share a column of the heat map."""

    first: int
    last: int

    @property
    def label(self) -> str:
        """The versions in words."""
        return f"v{self.first}" if self.first == self.last else f"v{self.first}-{self.last}"

    def score(self, task: TaskHistory) -> Score:
        """Returns the score of a task with these versions."""
        own = (
            score for version, score in task.versions.items() if self.first <= version <= self.last
        )
        return combined(own)


def version_spans(versions: Sequence[int], most: int = MAX_COLUMNS) -> list[VersionRange]:
    """Groups versions, in order, so that there are at most so many columns, equally full."""
    size = max(1, -(-len(versions) // most))
    parts = [versions[first : first + size] for first in range(0, len(versions), size)]
    return [VersionRange(part[0], part[-1]) for part in parts]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The coloured cells of some tasks: a column for each version, or for each drawing.

    Of a large taskset most tasks are drawn once or twice: columns of versions would be empty.
    """

    labels: tuple[str, ...]
    spans: tuple[VersionRange, ...]
    """Versions of the columns; empty if columns are drawings."""

    @classmethod
    def of(cls, versions: Sequence[int], shown: Sequence[TaskHistory]) -> "HeatMap":
        """Returns the columns that at least half of the cells fill, or one for each drawing."""
        spans = version_spans(versions)
        num_filled = sum(bool(span.score(task).num_runs) for task in shown for span in spans)
        if 2 * num_filled >= len(shown) * len(spans):
            return cls(tuple(span.label for span in spans), tuple(spans))
        most = min(MAX_COLUMNS, max(len(task.versions) for task in shown))
        return cls(tuple(f"Drawing {place}" for place in range(1, most + 1)), ())

    def cells(self, task: TaskHistory) -> tuple[tuple[str, int | None], ...]:
        """Returns the text and the colour of each cell; of more drawings the newest."""
        if self.spans:
            scores = [(span.score(task), "") for span in self.spans]
        else:
            drawn = list(task.versions.items())[-len(self.labels) :]
            scores = [(score, f"v{version} ") for version, score in drawn]
            scores += [(Score(), "")] * (len(self.labels) - len(scores))
        return tuple((before + heat_text(score), heat_level(score)) for score, before in scores)


def heat_text(score: Score) -> str:
    """Returns the text of a cell: the pass rate in percent; empty where the task was not drawn."""
    if not score.num_runs:
        return ""
    return UNSCORED if score.pass_rate is None else f"{score.pass_rate:.0%}"


def heat_level(score: Score) -> int | None:
    """Returns the colour of a cell: no run passed, fewer than half, fewer than all, all."""
    rate = score.pass_rate
    if rate is None:
        return None
    return 3 if rate == 1 else 2 if rate >= 0.5 else 1 if rate > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary:
    """Numbers of tasks that are never, always and sometimes solved."""

    num_tasks: int
    num_never: int
    num_always: int
    num_flipping: int
    mean: float | None

    @property
    def line(self) -> str:
        """The summary in words."""
        mean = "" if self.mean is None else f", mean score {self.mean:.3g}"
        return (
            f"{self.num_tasks:,} tasks{mean}: {self.num_never:,} never solved, "
            f"{self.num_always:,} always, {self.num_flipping:,} flipping"
        )


def summary_of(table: ScoreTable) -> ScoreSummary:
    """Returns the summary of the measured tasks."""
    tasks = [task for task in table.tasks if task.total.num_scored]
    totals = [task.total for task in tasks]
    return ScoreSummary(
        num_tasks=len(tasks),
        num_never=sum(not total.num_passed for total in totals),
        num_always=sum(total.num_passed == total.num_scored for total in totals),
        num_flipping=sum(task.num_flips > 0 for task in tasks),
        mean=combined(totals).mean,
    )


class Outcome(StrEnum):
    """The change of a task between two versions."""

    LOST = "lost"
    WON = "won"
    UNSOLVED = "still unsolved"
    SOLVED = "still solved"
    PARTLY = "unchanged"
    MISSING = "not measured in both"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """A task with its scores of two versions."""

    task: TaskHistory
    before: Score
    after: Score

    @property
    def outcome(self) -> Outcome:
        """Won or lost if the share of passing runs has changed."""
        before, after = self.before.pass_rate, self.after.pass_rate
        if before is None or after is None:
            return Outcome.MISSING
        if before != after:
            return Outcome.WON if after > before else Outcome.LOST
        return {0.0: Outcome.UNSOLVED, 1.0: Outcome.SOLVED}.get(after, Outcome.PARTLY)


def pairs_of(table: ScoreTable, before: int, after: int) -> list[TaskPair]:
    """Returns each task with its two scores: lost ones first, then won ones, then others.

    Among lost and won ones the largest change is first.
    """
    found = [
        TaskPair(
            task=task,
            before=task.versions.get(before, Score()),
            after=task.versions.get(after, Score()),
        )
        for task in table.tasks
    ]
    order = tuple(Outcome)
    return sorted(found, key=lambda pair: (order.index(pair.outcome), -_change(pair)))


def _change(pair: TaskPair) -> float:
    return abs((pair.after.pass_rate or 0.0) - (pair.before.pass_rate or 0.0))


def count_outcomes(pairs: Iterable[TaskPair]) -> dict[Outcome, int]:
    """Counts the tasks by outcome; outcomes without tasks are left out."""
    found = dict.fromkeys(Outcome, 0)
    for pair in pairs:
        found[pair.outcome] += 1
    return {outcome: count for outcome, count in found.items() if count}


def pairs_line(pairs: Sequence[TaskPair], before: int, after: int) -> str:
    """Describes the change between two versions in one line."""
    both = [pair for pair in pairs if pair.outcome is not Outcome.MISSING]
    counts = count_outcomes(pairs)
    parts = ", ".join(f"{count:,} {outcome.value}" for outcome, count in counts.items())
    if not both:
        return parts or "no task was measured"
    first = combined(pair.before for pair in both).mean or 0.0
    last = combined(pair.after for pair in both).mean or 0.0
    return (
        f"version {before} to {after}: mean score {first:.3g} to {last:.3g} ({last - first:+.3g}) "
        f"over {len(both):,} tasks; {parts}"
    )
