"""Work and waits of members: spans begin, go on and end as the members tell it."""

import pytest

from trinity.run.state import EndedWaitReport, MemberReport, WaitReport
from trinity.studio.history import StageHistory
from trinity.studio.lanes import (
    HEARD_SECONDS,
    KEEP_SECONDS,
    MAX_SPANS,
    MAX_STORED,
    STEPS,
    LaneHistory,
    step_spans,
)

NOW = 1_700_000_000.0


def wait(target: str, seconds: float, reason: str = "nothing to lease") -> WaitReport:
    return WaitReport(owner="explorer", waits_for=target, reason=reason, waited_seconds=seconds)


def member(
    *waits: WaitReport,
    activity: str = "rolling out",
    silent: float = 0.0,
    id: str = "m1",
    role: str = "explorer",
) -> MemberReport:
    return MemberReport(
        id=id,
        role=role,
        address="127.0.0.1:7001",
        activity=activity,
        silent_seconds=silent,
        waits=waits,
    )


def test_a_wait_is_one_span_until_it_is_told_no_more() -> None:
    history = LaneHistory()
    history.observe(NOW, [member(wait("buffer", 10.0))])
    history.observe(NOW + 2, [member(wait("buffer", 12.3, "step 4 is not published"))])
    assert history.closed_waits() == []
    history.observe(NOW + 4, [member()])
    [ended] = history.closed_waits()
    assert (ended.begin, ended.end, ended.waits_for) == (NOW - 10, NOW + 2, "buffer")
    assert ended.text == "step 4 is not published"  # the newest reason


def test_a_new_wait_for_the_same_is_another_span() -> None:
    history = LaneHistory()
    history.observe(NOW, [member(wait("buffer", 10.0))])
    history.observe(NOW + 10, [member(wait("buffer", 3.0))])
    history.observe(NOW + 12, [member()])
    assert [(span.begin, span.end) for span in history.closed_waits()] == [
        (NOW + 7, NOW + 10),
        (NOW - 10, NOW + 7),
    ]


def test_a_late_heartbeat_moves_no_beginning() -> None:
    """A wait is told as of the heartbeat, which was some seconds ago."""
    history = LaneHistory()
    history.observe(NOW, [member(wait("buffer", 5.0))])
    history.observe(NOW + 6, [member(wait("buffer", 5.0), silent=6.0)])
    history.observe(NOW + 8, [])
    [ended] = history.closed_waits()
    assert (ended.begin, ended.end) == (NOW - 5, NOW)


def test_activities_follow_one_another_in_their_lane() -> None:
    history = LaneHistory()
    for second, activity in ((0, "loading"), (4, "rolling out"), (8, "rolling out")):
        history.observe(NOW + second, [member(activity=activity)])
    [lane] = history.shown(NOW + 8).lanes
    assert [(span.label, span.is_wait) for span in lane.spans] == [
        ("loading", False),
        ("rolling out", False),
    ]
    loading, rolling = lane.spans
    assert loading.left + loading.width == pytest.approx(rolling.left, abs=0.01)


def test_lanes_are_in_order_of_their_roles_and_in_percent_of_the_time() -> None:
    history = LaneHistory()
    buffer = member(id="m2", role="buffer", activity="serving")
    history.observe(NOW - 300, [buffer, member()])
    history.observe(NOW, [buffer, member(wait("buffer", 150.0))])
    shown = history.shown(NOW)
    assert shown.window_seconds == 300
    assert [lane.name for lane in shown.lanes] == [
        "explorer 127.0.0.1:7001",
        "buffer 127.0.0.1:7001",
    ]
    waits = [span for span in shown.lanes[0].spans if span.is_wait]
    assert [(span.left, span.width) for span in waits] == [(50.0, 50.0)]
    assert waits[0].facts == (
        ("waits for", "buffer"),
        ("because", "nothing to lease"),
        ("for", "2 min so far"),
        ("began", "2 min ago"),
    )


def test_what_is_kept_is_bounded_in_number_and_in_time() -> None:
    history = LaneHistory()
    for step in range(2 * MAX_SPANS):
        history.observe(NOW + step, [member(wait("buffer", 0.5))] if step % 2 else [member()])
        history.observe(NOW + step + 0.5, [member(activity=str(step))])
    assert len(history._closed) == MAX_SPANS
    later = NOW + 2 * MAX_SPANS + KEEP_SECONDS + 10
    history.observe(later, [])
    history.observe(later + KEEP_SECONDS + 10, [])
    assert len(history._closed) == 0
    assert history.shown(later).lanes == ()
    assert history._names == {}


def test_texts_of_members_stay_in_one_line_without_steering_characters() -> None:
    history = LaneHistory()
    history.observe(NOW, [member(wait("<b>", 5.0, "a\u202eb\nc"), activity="x\ny")])
    [lane] = history.shown(NOW).lanes
    told = " ".join(value for span in lane.spans for _, value in span.facts)
    assert "\u202e" not in told
    assert "\n" not in told
    assert "\\u202e" in told


def test_services_that_close_end_what_was_open() -> None:
    history = LaneHistory()
    history.observe(NOW, [member(wait("buffer", 5.0))])
    history.end()
    assert len(history.closed_waits()) == 1
    [lane] = history.shown(NOW + 1).lanes
    assert not any("so far" in value for span in lane.spans for _, value in span.facts)


def stored(number: int, ended_ago: float, seconds: float = 4.0, id: str = "m1") -> EndedWaitReport:
    return EndedWaitReport(
        number=number,
        owner="explorer",
        waits_for="buffer",
        reason="nothing to lease",
        waited_seconds=seconds,
        ended_seconds_ago=ended_ago,
        member_id=id,
        role="explorer",
        stage="",
        experiment_id="",
        address="127.0.0.1:7001",
    )


def test_waits_of_the_time_before_the_first_look_are_shown() -> None:
    history = LaneHistory()
    assert not history.add_stored(NOW, [stored(2, 10.0), stored(1, 60.0)])
    history.observe(NOW, [member()])
    assert [(span.begin, span.end) for span in history.closed_waits()] == [
        (NOW - 14, NOW - 10),
        (NOW - 64, NOW - 60),
    ]
    shown = history.shown(NOW)
    [lane] = shown.lanes
    assert (lane.name, shown.window_seconds) == ("explorer 127.0.0.1:7001", 64.0)
    assert len([span for span in lane.spans if span.is_wait]) == 2
    [stopped] = history.shown(NOW - 10, ago="before the end").lanes
    assert stopped.spans[0].facts[-1] == ("began", "54 s before the end")


def test_a_wait_that_was_seen_and_is_stored_is_shown_once() -> None:
    history = LaneHistory()
    history.observe(NOW, [member(wait("buffer", 3.0))])
    history.observe(NOW + 2, [member()])
    assert len(history.closed_waits()) == 1, "the control: seen, and not stored"
    history.add_stored(NOW + 2, [stored(1, 1.5, seconds=3.5)])
    [only] = history.closed_waits()
    assert (only.begin, only.end) == (NOW - 3.0, NOW + 0.5)
    other = stored(2, 1.5, seconds=3.5, id="m2")
    history.add_stored(NOW + 2, [other])
    assert len(history.closed_waits()) == 2, "another member's is another one"


def test_stored_waits_join_those_that_were_added_before_and_are_bounded() -> None:
    history = LaneHistory()
    newest_first = [stored(number, 600.0 - number) for number in range(MAX_STORED, 0, -1)]
    assert not history.add_stored(NOW, newest_first)
    assert history.add_stored(NOW, [stored(MAX_STORED + 1, 0.0), *newest_first[:3]])
    assert not history.add_stored(NOW + 9, [stored(MAX_STORED + 9, 0.0)])
    assert len(history.closed_waits()) == MAX_STORED
    assert history.newest == NOW + 9


def test_what_a_member_does_goes_on_until_it_is_long_silent() -> None:
    history = LaneHistory()
    history.observe(NOW, [member()])
    [lane] = history.shown(NOW + HEARD_SECONDS - 1).lanes
    assert lane.spans[0].left + lane.spans[0].width == 100.0
    [lane] = history.shown(NOW + HEARD_SECONDS + 1).lanes
    assert lane.spans[0].width < 1.0, "the control"


def test_train_steps_have_a_lane_before_any_member_was_heard() -> None:
    stage = StageHistory(
        name="rft",
        total_steps=3,
        opened_millis=int(NOW - 60) * 1000,
        step_millis={1: int(NOW - 40) * 1000, 2: int(NOW - 10) * 1000},
    )
    for is_live, labels in (
        (True, ["step 1", "step 2", "step 3, under way"]),
        (False, ["step 1", "step 2"]),
    ):
        [lane] = LaneHistory().shown(NOW, steps=step_spans([stage], NOW, is_live=is_live)).lanes
        assert (lane.name, [span.label for span in lane.spans]) == (STEPS, labels)
    assert not LaneHistory().shown(NOW).lanes, "the control"
