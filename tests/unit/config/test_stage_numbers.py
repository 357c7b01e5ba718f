"""Steps, versions, lengths, sampling and learning rates of a stage."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.config.builders import GRPO, SFT, stage
from tests.unit.subtests import as_subtests
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError


def test_on_policy_every_step_needs_the_weights_of_the_one_before() -> None:
    planned = stage()
    assert [planned.required_version(step) for step in (1, 2, 3, 10)] == [0, 1, 2, 9]


def test_interval_and_offset_hold_the_version_back() -> None:
    planned = stage(synchronizer={"sync_interval": 4, "sync_offset": 2})
    assert [planned.required_version(s) for s in (1, 3, 6, 7, 10, 11)] == [0, 0, 0, 4, 4, 8]


def test_versions_count_train_steps_when_a_batch_takes_several_explore_steps() -> None:
    planned = stage(buffer={"train_batch_size": 64})
    assert [planned.required_version(step) for step in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2]


MIX: object = {"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": 0.25}}
EXPERTS: object = {"sft_dataset": {"storage_type": "file", "path": "/data/sft.jsonl"}}


def mixed(train_batch_size: int, **buffer: object) -> StagePlan:
    """A quarter of each batch are rows of data; an explore step gives 32 rollouts."""
    return stage(
        algorithm=MIX,
        buffer={
            "train_batch_size": train_batch_size,
            "trainer_input": {"auxiliary_buffers": EXPERTS},
            **buffer,
        },
    )


def test_of_a_mixed_batch_only_the_rollouts_count_as_explored() -> None:
    planned = mixed(43)
    assert (planned.num_expert_rows, planned.num_rollout_rows) == (11, 32)
    assert [planned.required_version(step) for step in (1, 2, 3, 10)] == [0, 1, 2, 9]
    assert (planned.total_explore_steps, planned.total_train_steps) == (10, 10)
    assert mixed(86, total_steps=9).total_train_steps == 5
    of_data = mixed(43, total_steps=None, total_epochs=2)
    assert of_data.num_train_steps(num_rows=11) == 5
    left_out = mixed(0)
    assert (left_out.train_batch_size, left_out.num_rollout_rows) == (32, 24)
    assert left_out.total_train_steps == 14


def test_a_share_of_a_batch_counts_as_it_is_written() -> None:
    share = {"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": 0.07}}
    planned = stage(
        algorithm=share,
        buffer={"train_batch_size": 100, "trainer_input": {"auxiliary_buffers": EXPERTS}},
    )
    assert planned.num_expert_rows == 7


@pytest.mark.parametrize(
    "strategy", [{"sample_strategy": "staleness_control"}, {"algorithm_type": "mix"}]
)
def test_a_bound_on_staleness_moves_with_the_train_step(strategy: dict[str, object]) -> None:
    bound = {**strategy, "sample_strategy_args": {"max_staleness": 2}}
    planned = stage(algorithm=bound, buffer={"trainer_input": {"auxiliary_buffers": EXPERTS}})
    assert [planned.oldest_version(step) for step in (1, 3, 4, 10)] == [0, 0, 1, 7]
    assert stage().oldest_version(10) == 0


@given(
    interval=st.integers(1, 5),
    offset=st.integers(0, 5),
    batch=st.integers(1, 100),
    step=st.integers(1, 60),
    ratio=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
)
def test_no_step_waits_for_weights_that_its_own_experiences_must_make(
    interval: int, offset: int, batch: int, step: int, ratio: float
) -> None:
    mix = {"algorithm_type": "mix", "sample_strategy_args": {"expert_data_ratio": ratio}}
    assume(math.ceil(ratio * batch) < batch)
    planned = stage(
        algorithm=mix if ratio else {},
        buffer={"train_batch_size": batch, "trainer_input": {"auxiliary_buffers": EXPERTS}},
        synchronizer={"sync_interval": interval, "sync_offset": offset},
    )
    version = planned.required_version(step)
    assert version % interval == 0
    assert version * planned.num_rollout_rows <= (step - 1) * planned.rows_per_explore_step
    assert version <= planned.required_version(step + 1)


@as_subtests(
    ("buffer", "trainer", "explore", "train"),
    [
        ({"total_steps": 10}, {}, 10, 10),
        ({"total_steps": 10, "train_batch_size": 64}, {}, 10, 5),
        ({"total_steps": 9, "train_batch_size": 64}, {}, 9, 5),
        ({"total_steps": 9, "train_batch_size": 64, "short_batch": "fail"}, {}, 9, 4),
        ({"total_steps": 10}, {"total_steps": 3}, 3, 3),
        ({"total_steps": 2}, {"total_steps": 3}, 2, 2),
        ({"total_steps": None}, {"total_steps": 3}, 3, 3),
        ({"total_steps": None}, {}, None, None),
    ],
)
def test_the_smaller_number_of_steps_wins_and_leaves_none_to_the_data(
    buffer: dict[str, object],
    trainer: dict[str, object],
    explore: int | None,
    train: int | None,
) -> None:
    planned = stage(buffer=buffer, trainer=trainer)
    assert (planned.total_explore_steps, planned.total_train_steps) == (explore, train)


def test_the_data_decides_where_no_number_of_steps_is_given() -> None:
    rollout = stage(buffer={"total_steps": None, "total_epochs": 2})
    assert rollout.num_explore_steps(num_tasks=11) == 5
    assert rollout.num_train_steps(num_rows=11) == 5
    rows = stage(SFT, buffer={"total_steps": None, "total_epochs": 3})
    assert rows.num_train_steps(num_rows=11) == 2
    assert stage().num_explore_steps(num_tasks=1) == 10


@pytest.mark.parametrize(
    ("model", "lengths"),
    [
        ({"max_model_len": 25}, (25, 12, 13)),
        ({"max_model_len": None, "max_prompt_tokens": 5, "max_response_tokens": 6}, (11, 5, 6)),
        ({"max_model_len": 24, "max_prompt_tokens": 5}, (24, 5, 19)),
        ({"max_model_len": 24, "max_response_tokens": 5}, (24, 19, 5)),
        ({"max_model_len": 24, "max_response_tokens": 50}, (24, 1, 23)),
        ({"max_model_len": 24, "max_prompt_tokens": 4, "max_response_tokens": 5}, (24, 4, 5)),
    ],
)
def test_lengths_left_out_are_what_the_others_leave(
    model: dict[str, object], lengths: tuple[int, int, int]
) -> None:
    planned = stage(model=model)
    assert (
        planned.max_model_len,
        planned.max_prompt_tokens,
        planned.max_response_tokens,
    ) == lengths


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"exceed `model.max_model_len: 24`"):
        stage(model={"max_prompt_tokens": 20, "max_response_tokens": 5})


def test_the_least_response_is_shorter_than_the_longest() -> None:
    assert stage(model={"min_response_tokens": 99}).min_response_tokens == 11


def test_a_taskset_samples_like_the_model_unless_it_says_otherwise() -> None:
    planned = stage(
        model={"temperature": 0.7, "top_k": 20},
        buffer={
            "explorer_input": {
                "default_eval_workflow_type": "math_workflow",
                "eval_tasksets": [
                    {"path": "/e", "repeat_times": 4, "rollout_args": {"temperature": 0}}
                ],
            }
        },
    )
    train, held_out = planned.taskset, planned.eval_tasksets[0]
    assert train is not None
    assert (train.sampling.temperature, train.sampling.top_k, train.sampling.max_tokens) == (
        0.7,
        20,
        12,
    )
    assert (held_out.sampling.temperature, held_out.sampling.top_k) == (0.0, 20)
    assert (train.repeat_times, held_out.repeat_times) == (8, 4)
    assert (train.workflow, held_out.workflow) == ("simple_workflow", "math_workflow")
    assert (held_out.name, held_out.is_eval) == ("eval_taskset_0", True)


def test_the_experiments_seed_is_every_selectors() -> None:
    taskset = stage(seed=7).taskset
    assert taskset is not None
    assert taskset.selector.seed == 7


def test_warm_up_starts_above_zero_and_reaches_lr() -> None:
    planned = stage(algorithm={"optimizer": {"lr": 1.0, "lr_warmup_steps": 4}})
    assert [planned.learning_rate(s) for s in (1, 2, 4, 5, 10)] == [0.25, 0.5, 1.0, 1.0, 1.0]


def test_cosine_starts_at_lr_and_ends_at_its_least() -> None:
    cosine: object = {"lr": 1.0, "lr_scheduler_type": "cosine", "min_lr_ratio": 0.1}
    planned = stage(algorithm={"optimizer": cosine})
    rates = [planned.learning_rate(step) for step in range(1, 12)]
    assert rates[0] == 1.0
    assert rates[9] == rates[10] == pytest.approx(0.1)
    assert rates == sorted(rates, reverse=True)


def test_a_warm_up_ratio_counts_the_stages_steps() -> None:
    ratio: object = {"optimizer": {"lr": 1.0, "lr_warmup_steps_ratio": 0.5}}
    assert stage(algorithm=ratio).learning_rate(1) == pytest.approx(0.2)
    unknown = stage(algorithm=ratio, buffer={"total_steps": None})
    assert unknown.learning_rate(1, total_train_steps=20) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="depends on the number of train steps"):
        unknown.learning_rate(1)


def test_grpo_base_is_what_the_tests_think_it_is() -> None:
    assert stage(GRPO).rows_per_explore_step == 32
