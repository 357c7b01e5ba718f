"""What is decided about the next batch."""

from services.buffer.domain.batches import (
    BatchEnd,
    BatchSupply,
    BatchWait,
    CloseExploreStep,
    ComposeNow,
    RefillTasks,
    decide_batch,
    tasks_to_draw,
)
from services.buffer.domain.stage import first_unbatched_step, planned_rows
from tests.unit.buffer.builders import plan, stage


def supply(
    num_rows: int,
    *,
    unfinished: str = "",
    next_step_wait: str = "",
    refill_rounds: int = 0,
    has_trained: bool = False,
) -> BatchSupply:
    return BatchSupply(
        num_rows=num_rows,
        unfinished=BatchWait(unfinished) if unfinished else None,
        next_step_wait=next_step_wait,
        refill_rounds=refill_rounds,
        has_trained=has_trained,
    )


def test_a_full_batch_is_taken_while_others_still_work() -> None:
    assert decide_batch(stage(), 1, supply(8, unfinished="something")) == ComposeNow()


def test_a_short_batch_waits_as_long_as_anything_can_fill_it() -> None:
    assert decide_batch(stage(), 1, supply(7, unfinished="one run")) == BatchWait("one run")
    assert decide_batch(stage(), 1, supply(7, next_step_wait="explore step 2")) == BatchWait(
        "explore step 2"
    )


def test_lost_rows_are_drawn_again_in_groups() -> None:
    assert decide_batch(stage(), 1, supply(5)) == RefillTasks(2, 1)
    assert decide_batch(stage(), 1, supply(0)) == RefillTasks(4, 1)


def test_as_many_tasks_are_drawn_as_the_rate_of_survival_suggests() -> None:
    assert tasks_to_draw(4, num_runs=0, num_lost=0) == 4
    assert tasks_to_draw(4, num_runs=100, num_lost=50) == 8
    assert tasks_to_draw(1, num_runs=96, num_lost=32) == 1, "what is left over is older"
    assert tasks_to_draw(4, num_runs=6, num_lost=5) == 4, "few runs say nothing"
    assert tasks_to_draw(4, num_runs=400, num_lost=400) == 16, "it is bounded"


def test_after_the_last_round_it_is_trained_short_or_fails() -> None:
    assert decide_batch(stage(), 1, supply(5, refill_rounds=3)) == ComposeNow()
    nothing = decide_batch(stage(), 1, supply(0, refill_rounds=3))
    assert isinstance(nothing, BatchEnd) and nothing.state == "failed"
    strict = stage(plan(short_batch="fail"))
    assert isinstance(decide_batch(strict, 1, supply(5, refill_rounds=3)), BatchEnd)


def test_an_explore_step_that_filled_a_train_step_is_closed_and_one_that_filled_none_fails() -> (
    None
):
    for own, num_rows in ((stage(), 0), (stage(plan(short_batch="fail")), 5)):
        closed = supply(num_rows, refill_rounds=3, has_trained=True)
        assert decide_batch(own, 2, closed) == CloseExploreStep()
        assert isinstance(decide_batch(own, 2, supply(num_rows, refill_rounds=3)), BatchEnd)
    assert decide_batch(stage(), 2, supply(5, refill_rounds=3, has_trained=True)) == ComposeNow()


def test_the_short_rest_of_the_tasks_is_no_loss() -> None:
    own = stage(plan(train_batch_size=12))
    assert (own.total_train_steps, planned_rows(own, 7)) == (7, 8)
    assert decide_batch(own, 7, supply(8)) == ComposeNow()
    assert decide_batch(own, 7, supply(6)) == RefillTasks(1, 1)


def test_of_a_mixed_batch_rollouts_alone_are_waited_for() -> None:
    own = stage(plan(train_batch_size=16, expert_data_ratio=0.5), recorded_step=3)
    assert (own.total_train_steps, planned_rows(own, 4)) == (10, 8)
    assert decide_batch(own, 4, supply(8, unfinished="something")) == ComposeNow()
    assert decide_batch(own, 4, supply(6)) == RefillTasks(1, 1)
    assert first_unbatched_step(own) == 4


def test_nothing_comes_after_the_last_step() -> None:
    end = decide_batch(stage(), 11, supply(8))
    assert isinstance(end, BatchEnd) and end.state == "drained"


def test_versions_are_evaluated_at_intervals_of_explore_steps() -> None:
    own = stage(plan(eval_interval=3))
    assert [v for v in range(12) if own.is_evaluated(v)] == [0, 3, 6, 9]
    ahead = stage(plan(eval_interval=3, sync_offset=1))
    assert [v for v in range(12) if ahead.is_evaluated(v)] == [0, 2, 5, 8]
