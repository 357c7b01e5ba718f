"""Which samples a batch takes by priority, and which wait no longer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from services.buffer.domain.batches import (
    BatchSupply,
    BatchWait,
    ComposeNow,
    RefillTasks,
    decide_short_batch,
)
from services.buffer.domain.replay import (
    ReplayCandidate,
    ReplaySelection,
    candidates_of,
    select_replay_batch,
)
from services.buffer.domain.stage import due_explore_step, first_unbatched_step, planned_rows
from tests.unit.buffer.builders import stage
from tests.unit.config.builders import stage as plan_stage
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.decay_limit_randomization import decay_limit_randomization
from trinity.algorithm.priority.linear_decay import linear_decay
from trinity.config.plan.parts import ResolvedReplay
from trinity.config.plan.rollouts_ahead import credit_rows
from trinity.config.plan.stage_plan import StagePlan


def sample(number: int, *, uses: int = 0, last: int = 0, version: int = 0) -> ReplayCandidate:
    return ReplayCandidate(
        experience_id=str(number),
        place=(1, number // 2, number % 2, 0, ""),
        version=version,
        reward=1.0,
        advantage=0.5,
        num_uses=uses,
        last_step=last,
    )


def settings(
    *,
    cooldown: int | None = 1,
    seconds: float = 0.0,
    capacity: int = 100,
    when_full: Literal["train", "drop"] = "train",
) -> ResolvedReplay:
    return ResolvedReplay(
        priority_fn="linear_decay",
        priority_fn_args={},
        cooldown_steps=cooldown,
        cooldown_seconds=seconds,
        capacity=capacity,
        when_full=when_full,
    )


def chosen(
    waiting: Sequence[ReplayCandidate], replay: ResolvedReplay, *, step: int = 5, size: int = 2
) -> ReplaySelection:
    priorities = [linear_decay(one) for one in candidates_of(waiting, seed=1)]
    return select_replay_batch(waiting, priorities, replay, step=step, size=size)


def ids(rows: Sequence[ReplayCandidate]) -> list[str]:
    return [one.experience_id for one in rows]


def replayed_plan(train_batch_size: int = 12, **replay: object) -> StagePlan:
    """Ten explore steps of four tasks with two runs each, every sample trained more than once."""
    return plan_stage(
        algorithm={"repeat_times": 2},
        buffer={
            "train_batch_size": train_batch_size,
            "trainer_input": {
                "experience_buffer": {
                    "capacity": 50,
                    "replay_buffer": {"enable": True, "reuse_cooldown_time": 1, **replay},
                }
            },
        },
    )


def test_newer_weights_come_first_and_uses_count_as_age() -> None:
    waiting = [
        sample(1, uses=1, last=1, version=4),
        sample(2, version=1),
        sample(3, version=3),
        sample(4, uses=1, last=1, version=3),
    ]
    assert ids(chosen(waiting, settings(), size=4).taken) == ["3", "1", "2", "4"]


def test_among_equals_the_place_decides_whatever_order_they_come_in() -> None:
    waiting = [sample(number) for number in (3, 1, 4, 2)]
    assert ids(chosen(waiting, settings(), size=3).taken) == ["1", "2", "3"]
    assert chosen(waiting[::-1], settings()) == chosen(waiting, settings())


def test_a_sample_rests_between_two_uses() -> None:
    waiting = [sample(1, uses=1, last=3), sample(2, uses=1, last=4)]
    assert ids(chosen(waiting, settings(cooldown=2)).taken) == ["1"]
    assert ids(chosen(waiting, settings(cooldown=1)).taken) == ["1", "2"]
    assert not chosen(waiting, settings(cooldown=None)).taken


def test_a_sample_rests_for_seconds_too() -> None:
    waiting = [replace(sample(n, uses=1, last=3), rested_seconds=10.0 * n) for n in (1, 2)]
    assert ids(chosen(waiting, settings(seconds=20.0)).taken) == ["2"]
    assert ids(chosen(waiting, settings()).taken) == ["1", "2"]


def test_for_what_was_trained_before_there_is_room_last() -> None:
    waiting = [sample(1), sample(2, uses=1, version=9), sample(3, uses=1), sample(4, uses=2)]
    choice = chosen(waiting, settings(capacity=2), size=4)
    assert ids(choice.taken) == ["2", "1"]
    assert ids(choice.retired) == ["3", "4"]
    assert choice.num_kept == 2


def test_of_too_many_that_were_never_trained_none_is_lost_unless_that_is_asked_for() -> None:
    waiting = [sample(1, version=7), sample(2, version=6), sample(3, version=5)]
    waiting += [sample(4, uses=1, version=20)]
    kept = chosen(waiting, settings(capacity=2))
    assert ids(kept.taken)[0] == "1"
    assert not kept.dropped
    assert ids(kept.retired) == ["4"]
    dropped = chosen(waiting, settings(capacity=2, when_full="drop"))
    assert ids(dropped.dropped) == ["3"]
    assert ids(dropped.taken) == ["1", "2"]


def test_too_many_that_were_never_trained_go_before_any_other() -> None:
    """Else a function that prefers old samples would let the others pile up."""
    waiting = [sample(number) for number in range(3)]
    priorities = [0.0, 1.0, 2.0]
    choice = select_replay_batch(waiting, priorities, settings(capacity=2), step=1, size=1)
    assert ids(choice.taken) == ["2"]
    old = [sample(9, uses=3, last=1)]
    both = select_replay_batch(
        [*waiting, *old], [*priorities, 99.0], settings(capacity=3), step=5, size=1
    )
    assert ids(both.taken) == ["2"]
    assert ids(both.retired) == ["9"]


def test_a_function_may_say_that_it_was_enough() -> None:
    waiting = [sample(1, uses=3, last=1), sample(2)]
    choice = select_replay_batch(waiting, [None, None], settings(), step=5, size=2)
    assert (ids(choice.retired), ids(choice.refused)) == (["1"], ["2"])
    assert not choice.taken


def test_uses_are_limited_and_chance_has_its_share() -> None:
    def priority(uses: int, **arguments: float) -> float | None:
        one = Candidate(model_version=10, use_count=uses, reward=None, advantage=0.0, normal=0.5)
        return decay_limit_randomization(one, **arguments)  # type: ignore[arg-type]

    assert [priority(uses) for uses in range(4)] == [10, 8, 6, None]
    assert priority(9, use_count_limit=0) == -8
    assert priority(1, sigma=4.0) == 10


def test_chance_is_the_same_each_time_and_that_of_the_group() -> None:
    waiting = [sample(number, uses=uses) for uses in (0, 1) for number in range(2000)]
    first = [one.normal for one in candidates_of(waiting, seed=3)]
    assert first == [one.normal for one in candidates_of(waiting, seed=3)]
    assert first != [one.normal for one in candidates_of(waiting, seed=4)]
    assert first[0] == first[1] != first[2]
    assert first[0] != first[2000]
    mean = sum(first) / len(first)
    assert abs(mean) < 0.1
    assert 0.9 < sum((one - mean) ** 2 for one in first) / len(first) < 1.1


def test_a_batch_that_fills_up_waits_for_one_explore_step_alone() -> None:
    own = stage(replayed_plan())
    assert own.plan.num_fresh_rows == 8
    assert (own.total_explore_steps, own.total_train_steps) == (10, 10)
    assert [own.plan.required_version(step) for step in (1, 2, 3)] == [0, 1, 2]
    assert [due_explore_step(own, step) for step in (1, 2, 10)] == [1, 2, 10]
    assert planned_rows(own, 4) == 8
    assert first_unbatched_step(stage(replayed_plan(), recorded_step=3)) == 4
    assert credit_rows(own.plan) == 12 + 8 + 50
    assert (
        decide_short_batch(
            own,
            2,
            BatchSupply(
                num_rows=8, unfinished=None, next_step_wait="", refill_rounds=0, has_trained=False
            ),
        )
        == ComposeNow()
    )
    short = BatchSupply(
        num_rows=5, unfinished=None, next_step_wait="", refill_rounds=0, has_trained=False
    )
    assert decide_short_batch(own, 2, short) == RefillTasks(2, 1)


def test_smaller_batches_take_their_share_of_an_explore_step() -> None:
    own = stage(replayed_plan(train_batch_size=4))
    assert (own.plan.num_fresh_rows, own.total_train_steps) == (4, 20)
    assert [due_explore_step(own, step) for step in (1, 2, 3)] == [1, 1, 2]


def test_an_order_alone_changes_no_number_of_steps() -> None:
    own = stage(replayed_plan(train_batch_size=12, reuse_cooldown_time=None))
    assert (own.plan.num_fresh_rows, own.total_train_steps) == (12, 7)
    assert isinstance(
        decide_short_batch(
            own,
            1,
            BatchSupply(
                num_rows=8,
                unfinished=BatchWait("x"),
                next_step_wait="",
                refill_rounds=0,
                has_trained=False,
            ),
        ),
        BatchWait,
    )
