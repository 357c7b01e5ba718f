"""Lanes of a run's members: the recent activities and waits of each.

The synchronizer stores each run's newest ended waits. Members report their current activities and
waits: Studio polls these every two seconds, so it shows activities only since its first look. If
the synchronizer stores no waits, Studio keeps those that it saw end.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from trinity.run.state import EndedWaitReport, MemberReport, WaitReport
from trinity.studio.history import STEP_SECONDS, StageHistory
from trinity.studio.plain_text import one_line, seconds_text

KEEP_SECONDS = 1_800.0
MAX_SPANS = 500
"""Spans that are kept of all members together; the oldest is forgotten first."""
MAX_LANES = 32
SHORTEST_SECONDS = 0.2
SAME_SECONDS = 1.5
"""Starts of a wait that differ by less are the same wait, reported with a heartbeat's delay."""
WINDOW_SECONDS = 300.0
LEAST_WINDOW_SECONDS = 30.0
SHORT_ID = 8
HEARD_SECONDS = 30.0
"""Time for which a silent member is shown with its last reported activity."""
STEPS = "train steps"
"""The lane of the steps, which are known from the run's events."""
MAX_STORED = 500
"""Stored waits that are shown; the oldest is forgotten first."""
_ROLES = ("explorer", "trainer", "buffer")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSpan:
    """Something that a member did, or waited for; times are seconds since 1970."""

    lane: str
    """The id of the member."""
    is_wait: bool
    text: str
    """Its activity, or the reason of the wait; may quote users' data."""
    waits_for: str = ""
    begin: float
    end: float
    is_open: bool = True

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSpan:
    """A span as it is drawn: its place in percent of the lane, its label and facts."""

    id: str
    is_wait: bool
    left: float
    width: float
    label: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The spans of one member, in order of their beginning."""

    name: str
    spans: tuple[ShownSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """All lanes over the same time."""

    lanes: tuple[Lane, ...]
    window_seconds: float


@dataclass(slots=True)
class LaneHistory:
    """Work and waits of members; a follower observes, pages read from other threads."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: deque[LaneSpan] = field(default_factory=lambda: deque(maxlen=MAX_SPANS))
    _open: dict[tuple[str, str], LaneSpan] = field(default_factory=dict)
    _stored: dict[tuple[str, int], LaneSpan] = field(default_factory=dict)
    """By member and number, in the order of their end."""
    _names: dict[str, tuple[int, str]] = field(default_factory=dict)
    _first: float = 0.0

    def observe(self, now: float, members: Iterable[MemberReport]) -> None:
        """Adds the members' current activities and waits."""
        with self._lock:
            self._first = self._first or now
            told: set[tuple[str, str]] = set()
            for member in members:
                where = member.address or member.id[:SHORT_ID]
                self._names[member.id] = _name_of(member.role, where)
                for key, span in _spans(now, member):
                    told.add(key)
                    self._add(key, span)
            for key in self._open.keys() - told:
                self._close(key, self._open[key].end)
            self._forget(now)

    def add_stored(self, now: float, waits: Sequence[EndedWaitReport]) -> bool:
        """Adds waits that the synchronizer has stored, the newest first.

        Returns False if there may be others between these and the ones added before.
        """
        with self._lock:
            new = [wait for wait in waits if (wait.member_id, wait.number) not in self._stored]
            for wait in reversed(new):
                self._names.setdefault(
                    wait.member_id, _name_of(wait.role, wait.address or wait.member_id[:SHORT_ID])
                )
                self._stored[wait.member_id, wait.number] = _stored_span(now, wait)
            while len(self._stored) > MAX_STORED:
                del self._stored[next(iter(self._stored))]
            return len(new) < len(waits)

    def end(self) -> None:
        """Closes everything: the services are not open any more."""
        with self._lock:
            for key in tuple(self._open):
                self._close(key, self._open[key].end)

    def closed_waits(self) -> list[LaneSpan]:
        """Returns the waits that ended, the newest first."""
        with self._lock:
            waits = [span for span in self._closed_spans() if span.is_wait]
        return sorted(waits, key=lambda span: -span.end)

    @property
    def newest(self) -> float | None:
        """The time up to which something is known; None without anything."""
        with self._lock:
            ends = [span.end for span in (*self._closed_spans(), *self._open.values())]
        return max(ends, default=None)

    def name_of(self, lane: str) -> str:
        """Returns the name of a lane."""
        return self._names.get(lane, (0, lane))[1]

    def shown(self, now: float, *, ago: str = "ago", steps: Iterable[LaneSpan] = ()) -> Lanes:
        """Returns the lanes over the minutes before `now`; `ago` says before what that is."""
        with self._lock:
            going_on = [
                replace(span, end=now) if span.end < now < span.end + HEARD_SECONDS else span
                for span in self._open.values()
            ]
            spans = [*steps, *self._closed_spans(), *going_on]
            names = {**self._names, STEPS: (-1, STEPS)}
        begins = [span.begin for span in spans]
        seen = now - min([self._first or now, *begins])
        window = max(LEAST_WINDOW_SECONDS, min(WINDOW_SECONDS, seen))
        start = now - window
        of_lane: dict[str, list[LaneSpan]] = {}
        for span in spans:
            if span.end >= start:
                of_lane.setdefault(span.lane, []).append(span)
        order = sorted(of_lane, key=lambda lane: names[lane])[:MAX_LANES]
        return Lanes(
            lanes=tuple(
                Lane(
                    name=names[lane][1],
                    spans=tuple(
                        _shown(span, start, window, ago)
                        for span in sorted(of_lane[lane], key=lambda span: span.begin)
                    ),
                )
                for lane in order
            ),
            window_seconds=window,
        )

    def _add(self, key: tuple[str, str], span: LaneSpan) -> None:
        known = self._open.get(key)
        if known is not None and _is_same(known, span):
            self._open[key] = replace(span, begin=known.begin)
            return
        if known is not None:
            self._close(key, max(known.begin, min(span.begin, span.end)))
        self._open[key] = span

    def _close(self, key: tuple[str, str], end: float) -> None:
        span = replace(self._open.pop(key), end=end, is_open=False)
        if span.seconds >= SHORTEST_SECONDS:
            self._closed.append(span)

    def _closed_spans(self) -> list[LaneSpan]:
        """Returns ended spans: the stored waits, and those seen here that are not stored."""
        stored = list(self._stored.values())
        of_target: dict[tuple[str, str], list[LaneSpan]] = {}
        for span in stored:
            of_target.setdefault((span.lane, span.waits_for), []).append(span)
        own = (
            span
            for span in self._closed
            if not any(_overlap(span, known) for known in of_target.get(_target(span), ()))
        )
        return [*stored, *own]

    def _forget(self, now: float) -> None:
        while self._closed and self._closed[0].end < now - KEEP_SECONDS:
            self._closed.popleft()
        spans = (*self._closed, *self._open.values(), *self._stored.values())
        known = {span.lane for span in spans}
        for lane in self._names.keys() - known:
            del self._names[lane]


def step_spans(stages: Iterable[StageHistory], now: float, *, is_live: bool) -> Iterator[LaneSpan]:
    """Yields the train steps that ended in the minutes before `now`, and the one under way."""
    for stage in stages:
        times = sorted(stage.step_millis.items())
        begins = [stage.opened_millis, *(millis for _, millis in times)]
        for begin, (step, end) in zip(begins, times, strict=False):
            if end / 1000 > now - WINDOW_SECONDS:
                seconds = stage.steps.get(STEP_SECONDS, {}).get(step, (end - begin) / 1000)
                yield _step_span(f"step {step:,}", end / 1000 - seconds, end / 1000)
        if is_live and begins[-1] and stage.last_step < stage.total_steps:
            text = f"step {stage.last_step + 1:,}, under way"
            yield _step_span(text, begins[-1] / 1000, now, is_open=True)


def _step_span(text: str, begin: float, end: float, *, is_open: bool = False) -> LaneSpan:
    return LaneSpan(lane=STEPS, is_wait=False, text=text, begin=begin, end=end, is_open=is_open)


def _is_same(known: LaneSpan, span: LaneSpan) -> bool:
    if span.is_wait:
        return abs(known.begin - span.begin) < SAME_SECONDS
    return known.text == span.text


def _target(span: LaneSpan) -> tuple[str, str]:
    return span.lane, span.waits_for if span.is_wait else ""


def _overlap(span: LaneSpan, other: LaneSpan) -> bool:
    return span.is_wait and span.begin < other.end and other.begin < span.end


def _name_of(role: str, where: str) -> tuple[int, str]:
    """Returns the order and the name of a member's lane."""
    place = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    return place, one_line(f"{role} {where}")


def _stored_span(now: float, wait: EndedWaitReport) -> LaneSpan:
    end = now - wait.ended_seconds_ago
    return LaneSpan(
        lane=wait.member_id,
        is_wait=True,
        text=wait.reason,
        waits_for=wait.waits_for,
        begin=end - wait.waited_seconds,
        end=end,
        is_open=False,
    )


def _spans(now: float, member: MemberReport) -> Iterator[tuple[tuple[str, str], LaneSpan]]:
    """Yields a member's activity, and its longest wait for each target, as of its heartbeat."""
    heard = now - member.silent_seconds
    activity = LaneSpan(lane=member.id, is_wait=False, text=member.activity, begin=heard, end=heard)
    yield (member.id, ""), activity
    longest: dict[str, WaitReport] = {}
    for wait in member.waits:
        known = longest.get(wait.waits_for)
        if known is None or wait.waited_seconds > known.waited_seconds:
            longest[wait.waits_for] = wait
    for target, wait in longest.items():
        yield (
            (member.id, target or "?"),
            LaneSpan(
                lane=member.id,
                is_wait=True,
                text=wait.reason,
                waits_for=target,
                begin=heard - wait.waited_seconds,
                end=heard,
            ),
        )


def _shown(span: LaneSpan, start: float, window: float, ago: str) -> ShownSpan:
    begin = max(span.begin, start)
    what = f"waits for {span.waits_for}" if span.is_wait else span.text
    lasted = seconds_text(span.seconds)
    facts = [
        ("waits for" if span.is_wait else "does", span.waits_for if span.is_wait else span.text),
        *([("because", span.text)] if span.is_wait else []),
        ("for", f"{lasted} so far" if span.is_open else lasted),
        ("began", f"{seconds_text(start + window - span.begin)} {ago}"),
    ]
    return ShownSpan(
        id=f"{span.lane}/{span.waits_for}/{span.begin:.0f}",
        is_wait=span.is_wait,
        left=round(100 * (begin - start) / window, 3),
        width=round(max(100 * (span.end - begin) / window, 0.3), 3),
        label=one_line(what),
        facts=tuple((name, one_line(value)) for name, value in facts),
    )
