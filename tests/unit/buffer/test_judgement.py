"""Which attempt wins."""

import random
from dataclasses import replace

from services.buffer.domain.results import ReceivedSample, ResultDeduplicator
from services.buffer.domain.stage import AssignmentState, AttemptState, CommitStatus, RunState
from tests.unit.buffer.builders import result, view


def judge(
    *,
    state: AssignmentState = AssignmentState.LEASED,
    stage_is_open: bool = True,
    newest_version: int = 10,
) -> ResultDeduplicator:
    own = view(state=state)
    return ResultDeduplicator(
        assignments={own.assignment_id: own},
        known=(),
        stage_is_open=stage_is_open,
        max_attempts=2,
        newest_version=newest_version,
    )


def test_the_first_complete_attempt_wins_whatever_its_number() -> None:
    own = judge()
    fates = [own.decide(result(attempt=a, sequence=s)).status for s, a in enumerate((3, 0, 1), 1)]
    assert fates == [CommitStatus.COMMITTED, CommitStatus.SUPERSEDED, CommitStatus.SUPERSEDED]


def test_a_failure_after_the_winner_takes_nothing_away() -> None:
    own = judge()
    own.decide(result(attempt=0, sequence=1))
    after = own.decide(result(attempt=1, sequence=2, is_complete=False))
    assert after.state is AttemptState.SUPERSEDED
    assert own.assignments[after.result.assignment_id].runs[0].state is RunState.WON


def test_a_run_is_given_up_with_its_last_attempt() -> None:
    own = judge()
    for attempt in (0, 1):
        verdict = own.decide(result(attempt=attempt, sequence=attempt + 1, is_complete=False))
        assert verdict.status is CommitStatus.COMMITTED
    run = own.assignments[verdict.result.assignment_id].runs[0]
    assert (run.state, run.reason) == (RunState.GIVEN_UP, "it broke")
    assert own.decide(result(attempt=2, sequence=3)).status is CommitStatus.LATE


def test_results_after_the_end_are_late() -> None:
    for own in (judge(state=AssignmentState.CANCELLED), judge(stage_is_open=False)):
        assert own.decide(result()).status is CommitStatus.LATE


def test_the_same_result_is_judged_alike_each_time() -> None:
    own = judge()
    sent = [
        result(attempt=0, sequence=1, is_complete=False),
        result(attempt=1, sequence=2),
        result(attempt=2, sequence=3),
    ]
    first = [own.decide(one).status for one in sent]
    again = sent * 3
    random.Random(0).shuffle(again)
    assert all(own.decide(one).state is None for one in again)
    assert [own.decide(one).status for one in sent] == first
    assert own.assignments[sent[0].assignment_id].runs[0].num_failed == 1


def test_another_content_under_a_known_attempt_or_sequence_is_refused() -> None:
    own = judge()
    own.decide(result(attempt=0, sequence=1))
    assert own.decide(result(attempt=0, sequence=1, content=b"b")).status is CommitStatus.REJECTED
    assert own.decide(result(attempt=0, sequence=9, content=b"b")).status is CommitStatus.REJECTED
    assert own.decide(result(run=1, attempt=0, sequence=1)).status is CommitStatus.REJECTED


def test_what_names_no_assignment_or_run_is_refused() -> None:
    own = judge()
    assert own.decide(result(run=7)).status is CommitStatus.REJECTED
    own.assignments.clear()
    assert "no assignment" in own.decide(result()).reason


def test_a_result_of_weights_that_cannot_exist_is_refused() -> None:
    """It was made before the database went back to a backup."""
    sample = ReceivedSample(
        experience_id="",
        step=0,
        suffix="",
        reward=1.0,
        finish_reason="stop",
        version_min=9,
        version_max=11,
        num_tokens=1,
        response_length=1,
        metrics={},
        content_hash=b"",
        turn_sha256=b"",
        body=b"",
    )
    made = replace(result(), experiences=(sample,))
    refused = judge(newest_version=10).decide(made)
    assert refused.status is CommitStatus.REJECTED
    assert "made with version 11 of the weights" in refused.reason
    assert judge(newest_version=11).decide(made).status is CommitStatus.COMMITTED
