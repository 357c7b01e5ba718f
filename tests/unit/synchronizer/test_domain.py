"""The rules of an experiment's life, and of waits, whatever the order of events."""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import permutations
from typing import Any, cast

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from services.synchronizer.domain import (
    DeviceTurn,
    Experiment,
    ExperimentStageState,
    ExperimentState,
    PlannedStage,
    PublishedVersion,
    Role,
    TurnReport,
    TurnState,
    VersionKind,
)
from services.synchronizer.members import ClosedWait, Member
from services.synchronizer.operations import Operations
from services.synchronizer.plan import longer_stages
from services.synchronizer.store.database import SynchronizerDatabase
from tests.unit.subtests import as_subtests
from trinity.errors import RpcError
from trinity.runtime.members import MemberPhase
from trinity.runtime.rpc.quotas import TenantQuota

PLAN = (
    PlannedStage(name="a", roles=(Role.TRAINER,)),
    PlannedStage(name="b", roles=(Role.TRAINER, Role.EXPLORER)),
    PlannedStage(name="c", roles=(Role.EXPLORER,)),
)


def final(stage: str) -> PublishedVersion:
    return PublishedVersion(
        stage=stage,
        version=1,
        incarnation=1,
        kind=VersionKind.FULL,
        base_version=0,
        path="/weights",
        manifest_sha256=b"m" * 32,
        weights_sha256=b"w" * 32,
        parent_version=0,
    )


def happen(experiment: Experiment, event: str, stage: str) -> Experiment:
    """Let something happen; what is refused changes nothing."""
    try:
        match event:
            case "trainer":
                return experiment.with_finished_role(stage, Role.TRAINER, final(stage))
            case "explorer":
                return experiment.with_finished_role(stage, Role.EXPLORER, None)
            case "fail":
                return experiment.failed(stage, "why")
            case "cancel":
                return experiment.cancelled("enough")
            case _:
                return experiment.resumed(PLAN)
    except RpcError:
        return experiment


EVENTS = st.tuples(
    st.sampled_from(["trainer", "explorer", "fail", "cancel", "resume"]), st.sampled_from("abc")
)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_happens_stages_end_in_order_and_one_runs_while_the_experiment_does(
    events: list[tuple[str, str]],
) -> None:
    experiment = Experiment.started("tenant", "label", PLAN)
    for event, stage in events:
        before, experiment = experiment, happen(experiment, event, stage)
        states = [stage.state for stage in experiment.stages]
        done = states.count(ExperimentStageState.FINISHED)
        assert states[:done] == [ExperimentStageState.FINISHED] * done
        assert done >= sum(s.state is ExperimentStageState.FINISHED for s in before.stages)
        is_running = experiment.state is ExperimentState.RUNNING
        assert states.count(ExperimentStageState.RUNNING) == is_running
        assert (experiment.state is ExperimentState.FINISHED) == (done == len(PLAN))
        assert bool(experiment.reason) == (
            experiment.state in (ExperimentState.FAILED, ExperimentState.CANCELLED)
        )
        for stage_ in experiment.stages[:done]:
            assert set(stage_.roles) <= set(stage_.finished_roles)
            assert (stage_.final_version is not None) == (Role.TRAINER in stage_.roles)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_happened_an_experiment_can_still_be_finished(
    events: list[tuple[str, str]],
) -> None:
    experiment = Experiment.started("tenant", "label", PLAN)
    for event, stage in events:
        experiment = happen(experiment, event, stage)
    experiment = experiment.resumed(PLAN)
    for stage in "abc":
        for role in ("trainer", "explorer"):
            experiment = happen(experiment, role, stage)
    assert experiment.state is ExperimentState.FINISHED


def test_a_straggler_of_an_earlier_start_fails_nothing() -> None:
    resumed = Experiment.started("t", "l", PLAN).cancelled("enough").resumed(PLAN)
    assert resumed.failed("a", "too late", start_count=1) == resumed
    assert resumed.failed("a", "why", start_count=2).state is ExperimentState.FAILED


def finished() -> Experiment:
    experiment = Experiment.started("t", "l", PLAN)
    for event, stage in (("trainer", "a"), ("trainer", "b"), ("explorer", "b"), ("explorer", "c")):
        experiment = happen(experiment, event, stage)
    assert experiment.state is ExperimentState.FINISHED
    return experiment


def test_a_finished_experiment_goes_on_when_its_last_stage_is_longer() -> None:
    again = finished().resumed(PLAN, {"c"})
    assert again.state is ExperimentState.RUNNING
    assert again.start_count == finished().start_count + 1
    assert again.running_stage is not None
    assert (again.running_stage.name, again.running_stage.finished_roles) == ("c", ())
    assert again.running_stage.final_version is None
    ended = happen(again, "explorer", "c")
    assert ended.state is ExperimentState.FINISHED


def test_a_stage_that_a_later_one_began_with_is_not_opened_again() -> None:
    assert finished().resumed(PLAN, {"a", "b"}).state is ExperimentState.FINISHED
    assert finished().resumed(PLAN).state is ExperimentState.FINISHED


def test_a_role_that_was_done_works_again_when_its_stage_is_longer() -> None:
    """The trainer of the last stage had finished when the run was stopped."""
    plan = PLAN[:2]
    experiment = happen(Experiment.started("t", "l", plan), "trainer", "a")
    stopped = experiment.with_finished_role("b", Role.TRAINER, final("b")).cancelled("enough")
    same = stopped.resumed(plan).stage("b")
    assert same.finished_roles == (Role.TRAINER,)
    assert stopped.resumed(plan, {"b"}).stage("b").finished_roles == ()


def plan_json(*stages: dict[str, object]) -> str:
    return json.dumps({"stages": [{"name": "a", **stage} for stage in stages]})


EPOCHS_2 = {"config": {"buffer": {"total_epochs": 2}}}


@as_subtests(
    ("before", "now", "is_longer"),
    [
        ({"total_train_steps": 5}, {"total_train_steps": 6}, True),
        ({"total_train_steps": 6}, {"total_train_steps": 5}, False),
        ({"total_explore_steps": 5}, {"total_explore_steps": 6}, True),
        ({"total_train_steps": 5}, {}, True),
        ({}, {"total_train_steps": 5}, True),
        ({}, EPOCHS_2, True),
        (EPOCHS_2, {}, False),
        ({}, {}, False),
        (
            {"total_train_steps": 5, "total_explore_steps": 5},
            {"total_train_steps": 5, "total_explore_steps": 5, **EPOCHS_2},
            False,
        ),
    ],
)
def test_a_plan_makes_a_stage_longer_or_not(
    before: dict[str, object], now: dict[str, object], is_longer: bool
) -> None:
    assert longer_stages(plan_json(before), plan_json(now)) == ({"a"} if is_longer else set())


def test_a_plan_that_does_not_say_how_long_it_is_makes_nothing_longer() -> None:
    assert longer_stages('{"stages": 3}', plan_json({"total_train_steps": 5})) == frozenset()


def turn_after(*reports: TurnReport) -> DeviceTurn:
    turn = DeviceTurn()
    for at, report in enumerate(reports, start=1):
        turn = turn.after(report, float(at))
    return turn


def said(role: Role, sequence: int, state: TurnState, reason: str = "to work") -> TurnReport:
    process = f"process of the {role}"
    return TurnReport(
        role=role,
        state=state,
        process=process,
        reason=reason,
        sequence=sequence,
        clock="this start",
    )


EXPLORER_HAS_IT = said(Role.EXPLORER, 1, TurnState.HELD)
EXPLORER_GIVES_IT_BACK = said(Role.EXPLORER, 2, TurnState.RELEASED)
TRAINER_WANTS_IT = said(Role.TRAINER, 1, TurnState.WANTED, "to train step 3")
TRAINER_HAS_IT = said(Role.TRAINER, 2, TurnState.HELD, "to train step 3")
TRAINER_GIVES_IT_BACK = said(Role.TRAINER, 3, TurnState.RELEASED)
A_TURN = (TRAINER_WANTS_IT, TRAINER_HAS_IT, TRAINER_GIVES_IT_BACK)


def test_a_wish_is_kept_until_it_is_met() -> None:
    wished = turn_after(EXPLORER_HAS_IT, TRAINER_WANTS_IT, TRAINER_WANTS_IT)
    assert (wished.holder, wished.since) == (Role.EXPLORER, 1.0)
    [wish] = wished.wishes
    assert (wish.role, wish.reason, wish.since) == (Role.TRAINER, "to train step 3", 2.0)
    met = wished.after(TRAINER_HAS_IT, 4.0)
    assert (met.holder, met.reason, met.since, met.wishes) == (
        Role.TRAINER,
        "to train step 3",
        4.0,
        (),
    )


def test_who_gives_it_back_late_takes_it_from_nobody() -> None:
    """The kernel lets the next one in before the last one has told."""
    turn = turn_after(EXPLORER_HAS_IT, TRAINER_WANTS_IT, TRAINER_HAS_IT, EXPLORER_GIVES_IT_BACK)
    assert (turn.holder, turn.since) == (Role.TRAINER, 3.0)


def test_nobody_has_it_once_it_is_given_back() -> None:
    turn = turn_after(EXPLORER_HAS_IT, TRAINER_WANTS_IT, EXPLORER_GIVES_IT_BACK)
    assert (turn.holder, turn.since) == (None, 3.0)
    assert [wish.role for wish in turn.wishes] == [Role.TRAINER]


def test_a_report_that_comes_twice_changes_nothing() -> None:
    once = turn_after(EXPLORER_HAS_IT)
    assert once.after(EXPLORER_HAS_IT, 9.0) == once


def test_a_wish_that_arrives_after_its_turn_changes_nothing() -> None:
    turn = turn_after(*A_TURN)
    assert turn.after(A_TURN[0], 9.0) == turn
    again = turn.after(replace(TRAINER_WANTS_IT, sequence=4), 9.0)
    assert [wish.role for wish in again.wishes] == [Role.TRAINER], "a new wish counts"


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_last_report_of_a_role_decides_in_whatever_order_they_arrive(
    order: tuple[int, ...],
) -> None:
    turn = turn_after(*(A_TURN[at] for at in order))
    assert (turn.holder, turn.wishes) == (None, ())


def test_reports_of_the_roles_are_numbered_apart_and_of_another_clock_anew() -> None:
    turn = turn_after(*A_TURN)
    assert turn.after(EXPLORER_HAS_IT, 9.0).holder is Role.EXPLORER
    rebooted = turn.after(replace(TRAINER_WANTS_IT, clock="the next start"), 9.0)
    assert [wish.role for wish in rebooted.wishes] == [Role.TRAINER]
    back = rebooted.after(TRAINER_HAS_IT, 10.0)
    assert back.holder is Role.TRAINER, "the machine that a run comes back to counts too"


class Database:
    """Records the statements, and answers what row a member's id is left with."""

    def __init__(self, left: uuid.UUID | None) -> None:
        self._left = left
        self.statements: list[str] = []

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator["Database"]:
        yield self

    async def execute(self, statement: sa.ClauseElement, values: Any = None) -> None:
        del values
        self.statements.append(str(statement).split("(")[0].strip())

    async def fetch_first(self, statement: sa.ClauseElement) -> uuid.UUID | None:
        del statement
        return self._left


def wait_of(member: Member) -> ClosedWait:
    return ClosedWait(
        number=1,
        owner="explorer",
        waits_for="buffer",
        reason="nothing to lease",
        waited_seconds=3.0,
        ended_seconds_ago=1.0,
        experiment_id=None,
        stage="",
        member_id=member.id,
        role=member.role,
        address=member.address,
    )


@pytest.mark.parametrize("is_own", [True, False])
async def test_only_a_member_itself_leaves_waits_under_its_id(is_own: bool) -> None:
    member = Member(
        id=uuid.uuid4(),
        role=Role.EXPLORER,
        address="",
        experiment_id=None,
        stage="",
        activity="gone",
        phase=MemberPhase.GONE,
        version=-1,
        pinned_versions=(),
        waits=(),
    )
    database = Database(left=None if is_own else member.id)
    own = Operations(
        cast(SynchronizerDatabase, database), TenantQuota(what="members", variable="", limits={})
    )
    assert await own.record_heartbeat(member, "b", [wait_of(member)])
    stored = any(text.startswith("INSERT INTO closed_wait") for text in database.statements)
    assert stored is is_own
