"""A turn is stored once, under the lease of its run, after its parent."""

import uuid
from dataclasses import replace

from services.buffer.domain.results import AssignmentView
from services.buffer.domain.stage import AssignmentState
from services.buffer.domain.turns import FENCED, ReceivedTurn, decide_turns
from tests.unit.buffer import builders
from tests.unit.buffer.builders import ASSIGNMENT, KEY, PRODUCER

TOKEN = str(uuid.UUID(int=9))
TURN = ReceivedTurn(
    key=KEY,
    session_id="session",
    assignment_id=ASSIGNMENT,
    run=0,
    lease_token=TOKEN,
    turn_id="first",
    parent_id=None,
    prompt_sha256=b"p",
    ordinal=0,
    content_hash=b"1",
    body=b"body",
    producer=PRODUCER,
    sequence=1,
)
CHILD = replace(TURN, turn_id="second", parent_id="first", content_hash=b"2")


def view(state: AssignmentState = AssignmentState.LEASED) -> AssignmentView:
    return replace(builders.view(1, state), lease_token=TOKEN)


def reasons(
    *turns: ReceivedTurn,
    known: dict[str, bytes] | None = None,
    of: AssignmentView | None = None,
    stage_is_open: bool = True,
) -> list[tuple[bool, str]]:
    views = {ASSIGNMENT: of or view()}
    decided = decide_turns(turns, views=views, known=known or {}, stage_is_open=stage_is_open)
    return [(decision.is_new, decision.reason) for decision in decided]


def test_a_turn_and_the_one_after_it_are_new() -> None:
    assert reasons(TURN, CHILD) == [(True, ""), (True, "")]


def test_a_stored_turn_that_comes_again_is_stored_whatever_became_of_its_lease() -> None:
    late = replace(TURN, lease_token=PRODUCER)
    assert reasons(late, known={"first": b"1"}) == [(False, "")]
    assert reasons(TURN, TURN) == [(True, ""), (False, "")]


def test_another_answer_in_its_place_is_refused() -> None:
    [(is_new, reason)] = reasons(TURN, known={"first": b"other"})
    assert not is_new and "another answer" in reason


def test_a_turn_under_an_older_lease_or_of_an_ended_run_is_refused() -> None:
    assert reasons(replace(TURN, lease_token=PRODUCER)) == [(False, FENCED)]
    assert reasons(TURN, of=view(AssignmentState.CLOSED)) == [(False, FENCED)]
    assert reasons(TURN, stage_is_open=False) == [(False, FENCED)]


def test_a_turn_without_its_parent_or_its_run_is_refused() -> None:
    [(_, reason)] = reasons(CHILD)
    assert reason == "its parent first is not stored"
    [(_, reason)] = reasons(replace(TURN, run=7))
    assert reason.startswith("there is no run 7")


def test_a_clients_turn_counts_under_the_token_of_its_session_alone() -> None:
    own = replace(TURN, assignment_id=None, lease_token="newest")
    for token, is_new in (("newest", True), ("before", False)):
        [told] = decide_turns(
            [own], views={}, known={}, stage_is_open=True, clients={"session": token}
        )
        assert (told.is_new, told.reason) == (is_new, "" if is_new else FENCED)
