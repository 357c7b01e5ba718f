"""The checks on their own: what each must see, in a record that is else in order."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.chaos import snapshot as s
from tests.chaos.checks import CHECKS, findings
from tests.chaos.controls import CONTROLS
from tests.support.replay_model import Rules

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: int) -> datetime:
    return BEGUN + timedelta(seconds=second)


def sample(name: str, run: int, **changes: object) -> s.Sample:
    one = s.Sample(
        id=name,
        assignment_id="task",
        explore_step=1,
        position=0,
        run=run,
        attempt=0,
        revision=0,
        parent_id=None,
        payload_id=name.removesuffix("'"),
        state="derived",
        reason="",
        versions=(0, 0),
        content_hash=name.removesuffix("'"),
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def shaped(name: str, run: int) -> s.Sample:
    return sample(f"{name}'", run, revision=1, parent_id=name, state="batched")


ROWS = (("a", 1.0), ("b", -1.0))
GOOD = s.Snapshot(
    stage=s.StageRecord(
        state="finished",
        reason="",
        total_train_steps=1,
        trained_step=1,
        train_batch_size=2,
        is_ordered=True,
    ),
    assignments=(
        s.Assignment(
            id="task",
            explore_step=1,
            position=0,
            state="closed",
            required_version=0,
            repeat_times=2,
        ),
    ),
    runs=tuple(s.Run(assignment_id="task", run=run, state="won") for run in (0, 1)),
    attempts=tuple(
        s.Attempt(assignment_id="task", run=run, attempt=0, state="won") for run in (0, 1)
    ),
    samples=(sample("a", 0), sample("b", 1), shaped("a", 0), shaped("b", 1)),
    batches=(s.Batch(step=1, experience_ids=("a'", "b'"), rows=ROWS),),
    lives=(s.Commit(what="life", number=0, incarnation=1, at=at(0)),),
    commits=(s.Commit(what="report", number=1, incarnation=1, at=at(3)),),
    recorded=(s.Version(version=0, incarnation=1, weights_root="w0", at=at(2)),),
    published=(
        s.Version(version=0, incarnation=1, weights_root="w0", manifest_sha256="m0", at=at(1)),
        s.Version(version=1, incarnation=1, weights_root="w1", manifest_sha256="m1", at=at(4)),
    ),
    checkpoints=(s.Checkpoint(step=1, incarnation=1, is_intact=True),),
    told=(s.Told(assignment_id="task", run=0, attempt=0, fate="committed", experience_ids=("a",)),),
    seen=(s.SeenBatch(step=1, incarnation=1, rows=ROWS),),
    loads=(s.Load(path="v0", manifest_sha256="m0", is_intact=True),),
    weights="w1",
    expected_weights="w1",
)
COPIED = replace(
    GOOD,
    samples=(
        *GOOD.samples[:1],
        replace(GOOD.samples[1], state="filtered", reason="flat; a copy", is_replaced=True),
        shaped("a", 0),
        replace(shaped("a", 0), id="a''"),
    ),
    batches=(s.Batch(step=1, experience_ids=("a'", "a''"), rows=(ROWS[0], ROWS[0])),),
    seen=(s.SeenBatch(step=1, incarnation=1, rows=(ROWS[0], ROWS[0])),),
)
"""One sample left out, a copy of the other in its place."""
MIXED_ROWS = (*ROWS, ("data 3", 0.0), ("data 4", 0.0))
MIXED = replace(
    GOOD,
    stage=replace(GOOD.stage, train_batch_size=4, num_expert_rows=2),
    batches=(replace(GOOD.batches[0], rows=MIXED_ROWS),),
    seen=(replace(GOOD.seen[0], rows=MIXED_ROWS),),
)
"""Two rows of data beside the samples."""
REPLAYED = replace(
    GOOD,
    stage=replace(
        GOOD.stage,
        total_train_steps=2,
        replay=Rules(num_steps=2, size=3, rows_per_explore_step=2, cooldown=1, use_limit=2),
    ),
    batches=(*GOOD.batches, replace(GOOD.batches[0], step=2)),
    commits=(*GOOD.commits, replace(GOOD.commits[0], number=2)),
    seen=(*GOOD.seen, replace(GOOD.seen[0], step=2)),
)
"""Both samples are trained twice, as is asked for."""
AGED = replace(
    GOOD,
    stage=replace(GOOD.stage, train_batch_size=1),
    samples=(*GOOD.samples[:3], replace(GOOD.samples[3], state="filtered", reason="too old")),
    batches=(replace(GOOD.batches[0], experience_ids=("a'",), rows=ROWS[:1]),),
    seen=(replace(GOOD.seen[0], rows=ROWS[:1]),),
)
"""A row that was ready and grew too old."""


MEASURED = replace(
    GOOD,
    stage=replace(GOOD.stage, eval_tasks={"held-out": 1}, due_versions=(1,)),
    assignments=(
        *GOOD.assignments,
        replace(
            GOOD.assignments[0],
            id="exam",
            kind="eval",
            taskset="held-out",
            required_version=1,
        ),
    ),
    runs=(*GOOD.runs, *(replace(one, assignment_id="exam") for one in GOOD.runs)),
    attempts=(*GOOD.attempts, *(replace(one, assignment_id="exam") for one in GOOD.attempts)),
    samples=(
        *GOOD.samples,
        *(
            sample(f"e{run}", run, assignment_id="exam", state="eval", versions=(1, 1), reward=run)
            for run in (0, 1)
        ),
    ),
    evaluations=(
        s.Evaluation(
            version=1, taskset="held-out", state="done", num_tasks=1, num_failed=0, reward=0.5
        ),
    ),
)
"""The last version was measured on one task, in two runs."""


def gone(one: s.Sample, **changes: object) -> s.Sample:
    return replace(one, has_content=False, **changes)  # type: ignore[arg-type]


def visited(**what: object) -> s.Visit:
    return s.Visit(**what)  # type: ignore[arg-type]


NO_REWARD = "no reward came in 86400 s (`buffer.feedback_timeout`)"
FIRST_REWARD = s.Rewarded(rewards={"a": 0.5}, are_new=True)
SCORED = tuple(replace(one, reward=0.5) if one.payload_id == "a" else one for one in GOOD.samples)
VISITED = replace(
    GOOD,
    samples=(
        *SCORED,
        sample("c", 1, state="excluded"),
        gone(sample("d", 1, state="deleted")),
        sample("e", 1, state="filtered", reason=NO_REWARD),
    ),
    visit=visited(
        rewarded=(FIRST_REWARD, replace(FIRST_REWARD, are_new=False)),
        excluded=("c",),
        deleted=("d",),
        overdue=("e",),
        num_told_overdue=1,
        tasksets=(
            s.Taskset(name="whole", told_rows=2, right_rows=2, stored_rows=2),
            s.Taskset(name="deleted", told_rows=-1, right_rows=0, stored_rows=0),
        ),
    ),
)
"""Rewards came later or never, one sample was excluded, one deleted, tasksets came and went."""
LET_GO = replace(GOOD, samples=tuple(gone(one, is_let_go=True) for one in GOOD.samples))
"""Everything is older than the checkpoint."""
UNORDERED = replace(REPLAYED, stage=replace(REPLAYED.stage, is_ordered=False))
THRICE = (*REPLAYED.batches, replace(GOOD.batches[0], step=3))
BEYOND: list[tuple[str, s.Snapshot, dict[str, object]]] = [
    ("evaluations_are_whole", MEASURED, {"samples": MEASURED.samples[:-2]}),
    (
        "evaluations_are_whole",
        MEASURED,
        {"samples": (*MEASURED.samples[:-1], replace(MEASURED.samples[-1], versions=(0, 0)))},
    ),
    (
        "evaluations_are_whole",
        MEASURED,
        {"evaluations": (replace(MEASURED.evaluations[0], reward=0.25),)},
    ),
    (
        "evaluations_are_whole",
        MEASURED,
        {"evaluations": (replace(MEASURED.evaluations[0], state="cancelled"),)},
    ),
    ("trained_as_asked", REPLAYED, {"batches": REPLAYED.batches[:1]}),
    (
        "trained_as_asked",
        REPLAYED,
        {"batches": (GOOD.batches[0], replace(REPLAYED.batches[1], experience_ids=("b'", "a'")))},
    ),
    ("trained_as_asked", UNORDERED, {"batches": THRICE}),
    (
        "no_row_twice",
        REPLAYED,
        {"batches": (replace(GOOD.batches[0], experience_ids=("a'", "a'")),)},
    ),
    ("nothing_is_lost", COPIED, {"samples": COPIED.samples[:3]}),
    ("nothing_is_lost", COPIED, {"samples": (*COPIED.samples, sample("c", 1))}),
    (
        "nothing_is_lost",
        COPIED,
        {"samples": (COPIED.samples[0], GOOD.samples[1], *COPIED.samples[2:])},
    ),
    (
        "no_row_twice",
        COPIED,
        {"batches": (*COPIED.batches, replace(COPIED.batches[0], step=2, experience_ids=("x",)))},
    ),
    (
        "no_row_twice",
        COPIED,
        {"batches": (replace(COPIED.batches[0], experience_ids=("a'",) * 2),)},
    ),
    ("whole_groups", COPIED, {"samples": (*COPIED.samples, shaped("b", 1), shaped("c", 1))}),
    ("nothing_is_lost", MIXED, {"batches": (replace(MIXED.batches[0], rows=MIXED_ROWS[:3]),)}),
    (
        "nothing_is_lost",
        MIXED,
        {"batches": (replace(MIXED.batches[0], rows=(*ROWS, ROWS[0], MIXED_ROWS[2])),)},
    ),
    (
        "no_row_twice",
        MIXED,
        {"batches": (replace(MIXED.batches[0], rows=(*MIXED_ROWS, *2 * MIXED_ROWS[2:3])),)},
    ),
    ("batches_never_change", MIXED, {"seen": (replace(MIXED.seen[0], rows=MIXED_ROWS[::-1]),)}),
    (
        "nothing_is_lost",
        AGED,
        {"samples": (*GOOD.samples[:3], replace(AGED.samples[3], reason=""))},
    ),
]
"""The same in records of algorithms that copy rows, bring rows of data, or let rows grow old."""
LATER_LIFE = s.Commit(what="life", number=0, incarnation=2, at=at(2))
BAD: list[tuple[str, dict[str, object]]] = [
    ("evaluations_are_whole", {"evaluations": MEASURED.evaluations}),
    ("told_is_stored", {"told": (replace(GOOD.told[0], attempt=7),)}),
    ("told_is_stored", {"told": (replace(GOOD.told[0], experience_ids=("c",)),)}),
    ("told_is_stored", {"told": (replace(GOOD.told[0], fate="rejected"),)}),
    ("stored_once", {"samples": (*GOOD.samples, sample("c", 0, content_hash="a"))}),
    ("one_attempt_a_run", {"attempts": (*GOOD.attempts, replace(GOOD.attempts[0], attempt=1))}),
    ("one_attempt_a_run", {"samples": (*GOOD.samples, sample("c", 0, attempt=1))}),
    ("whole_groups", {"runs": (GOOD.runs[0], replace(GOOD.runs[1], state="open"))}),
    ("whole_groups", {"samples": (*GOOD.samples, shaped("c", 1))}),
    ("batches_never_change", {"seen": (replace(GOOD.seen[0], rows=ROWS[::-1]),)}),
    ("no_row_twice", {"batches": (*GOOD.batches, replace(GOOD.batches[0], step=2))}),
    ("trained_as_asked", {"batches": (*GOOD.batches, replace(GOOD.batches[0], step=2))}),
    ("nothing_is_lost", {"batches": ()}),
    ("nothing_is_lost", {"commits": ()}),
    ("nothing_is_lost", {"samples": (*GOOD.samples, sample("c", 1, state="batched"))}),
    ("nothing_is_lost", {"samples": (*GOOD.samples, sample("c", 1, state="filtered"))}),
    ("nothing_is_lost", {"samples": (*GOOD.samples, sample("c", 1))}),
    ("nothing_is_lost", {"stage": replace(GOOD.stage, state="failed")}),
    (
        "nothing_is_lost",
        {"samples": (*GOOD.samples, sample("c", 1, explore_step=0, state="ready"))},
    ),
    (
        "versions_go_forward",
        {"published": (GOOD.published[0], replace(GOOD.published[1], at=at(0)))},
    ),
    ("versions_go_forward", {"recorded": (replace(GOOD.recorded[0], weights_root="x"),)}),
    ("runs_used_their_version", {"samples": (*GOOD.samples, sample("c", 1, versions=(9, 9)))}),
    ("runs_used_their_version", {"samples": (*GOOD.samples, sample("c", 1, versions=(1, 1)))}),
    ("loads_were_verified", {"loads": (replace(GOOD.loads[0], is_intact=False),)}),
    ("loads_were_verified", {"loads": (replace(GOOD.loads[0], manifest_sha256="x"),)}),
    ("checkpoints_are_whole", {"checkpoints": (replace(GOOD.checkpoints[0], is_intact=False),)}),
    ("only_the_newest_life_commits", {"lives": (*GOOD.lives, LATER_LIFE)}),
    (
        "only_the_newest_life_commits",
        {"published": (*GOOD.published, replace(GOOD.published[0], incarnation=2, at=at(2)))},
    ),
    ("ends_in_the_same_weights", {"expected_weights": "x"}),
    ("contents_are_there", {"samples": (*GOOD.samples[:3], gone(GOOD.samples[3]))}),
    (
        "contents_are_there",
        {
            "samples": (*GOOD.samples[:3], gone(GOOD.samples[3], is_let_go=True)),
            "checkpoints": (),
        },
    ),
    (
        "contents_are_there",
        {"samples": (*GOOD.samples, gone(sample("c", 1, state="awaiting"), is_let_go=True))},
    ),
    *(
        ("rewards_are_kept", {"visit": visit, "samples": (*samples,)})
        for visit, samples in (
            (visited(rewarded=(FIRST_REWARD, FIRST_REWARD)), SCORED),
            (visited(rewarded=(FIRST_REWARD,)), GOOD.samples),
            (visited(rewarded=(FIRST_REWARD,)), (SCORED[0], *GOOD.samples[1:])),
        )
    ),
    ("excluded_is_not_trained", {"visit": visited(excluded=("a",))}),
    (
        "excluded_is_not_trained",
        {
            "visit": visited(excluded=("c",)),
            "samples": (*GOOD.samples, sample("c", 1, state="awaiting")),
        },
    ),
    ("excluded_is_not_trained", {"visit": visited(excluded=("nowhere",))}),
    (
        "included_is_trained",
        {
            "visit": visited(included=("c",)),
            "samples": (*GOOD.samples, sample("c", 1, state="excluded")),
        },
    ),
    *(
        ("overdue_is_left_out", {"visit": visit, "samples": (*GOOD.samples, *further)})
        for visit, further in (
            (visited(overdue=("a",)), ()),
            (visited(overdue=("c",), num_told_overdue=1), ()),
            (visited(), (sample("c", 1, state="filtered", reason=NO_REWARD),)),
            *(
                (
                    visited(overdue=("c",), num_told_overdue=num_told),
                    (sample("c", 1, state=state, reason=NO_REWARD, reward=reward),),
                )
                for num_told, state, reward in (
                    (0, "filtered", None),
                    (2, "filtered", None),
                    (1, "filtered", 0.5),
                    (1, "awaiting", None),
                )
            ),
        )
    ),
    ("contents_are_some_samples", {"nobodys": ("x",)}),
    ("deleted_is_gone", {"visit": visited(deleted=("a'",))}),
    (
        "deleted_is_gone",
        {
            "visit": visited(deleted=("a'",)),
            "samples": (replace(GOOD.samples[2], state="deleted"), *GOOD.samples[:2]),
        },
    ),
]
TASKSETS = (
    s.Taskset(name="twice", told_rows=2, right_rows=2, stored_rows=4),
    s.Taskset(name="mixed up", told_rows=2, right_rows=0, stored_rows=2),
    s.Taskset(name="short", told_rows=2, right_rows=1, stored_rows=1),
    s.Taskset(name="deleted", told_rows=-1, right_rows=2, stored_rows=2),
)
BAD += [("tasksets_are_whole", {"visit": visited(tasksets=(one,))}) for one in TASKSETS]


@pytest.mark.parametrize(
    "record", [GOOD, COPIED, MIXED, REPLAYED, UNORDERED, AGED, VISITED, LET_GO, MEASURED]
)
def test_nothing_is_found_where_all_is_in_order(record: s.Snapshot) -> None:
    assert findings(record) == {}


@pytest.mark.parametrize(("check", "record", "changes"), BEYOND)
def test_each_check_finds_it_whatever_the_algorithm_does_with_rows(
    check: str, record: s.Snapshot, changes: dict[str, object]
) -> None:
    assert check in findings(replace(record, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("check", "changes"), BAD)
def test_each_check_finds_what_it_is_for(check: str, changes: dict[str, object]) -> None:
    assert check in findings(replace(GOOD, **changes))  # type: ignore[arg-type]


def test_every_check_is_tried_alone_and_with_its_protection_off() -> None:
    assert (
        {check for check, _ in BAD}
        == set(CHECKS)
        == {check for control in CONTROLS for check in control.checks}
    )
