"""What a replay buffer asks for becomes numbers, or is refused with a sentence."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import SFT, config, load, stage
from trinity.config.checks.advice import advise
from trinity.config.plan.parts import ResolvedReplay
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError

ON = {"enable": True}


def planned(replay: Mapping[str, object], **buffer: object) -> StagePlan:
    """A plan with these settings of the experience buffer."""
    changes = {"experience_buffer": {"replay_buffer": replay, **buffer}}
    return stage(buffer={"train_batch_size": 64, "trainer_input": changes})


def replay_of(plan: StagePlan) -> ResolvedReplay:
    assert plan.replay is not None
    return plan.replay


def said(replay: Mapping[str, object], **buffer: object) -> list[str]:
    changes = {"experience_buffer": {"replay_buffer": replay, **buffer}}
    written = config(buffer={"train_batch_size": 64, "trainer_input": changes})
    return [text for text in advise(plan_experiment(written)) if "replay_buffer" in text]


def test_without_it_rows_are_trained_in_order_once() -> None:
    assert stage().replay is None
    assert planned({"enable": False}).num_fresh_rows == 64


def test_an_order_has_its_function_with_all_arguments() -> None:
    assert replay_of(planned(ON)) == ResolvedReplay(
        priority_fn="linear_decay",
        priority_fn_args={"decay": 2.0},
        cooldown_steps=None,
        capacity=10000,
        when_full="train",
    )
    chance = {"priority_fn": "decay_limit_randomization", "priority_fn_args": {"sigma": 0.5}}
    found = replay_of(planned({**ON, **chance}))
    assert found.priority_fn_args == {"decay": 2.0, "use_count_limit": 3, "sigma": 0.5}


@pytest.mark.parametrize(("time", "steps"), [(0, 1), (0.1, 1), (1, 1), (2.5, 3), (None, None)])
def test_cooling_down_takes_whole_train_steps(time: float | None, steps: int | None) -> None:
    plan = planned({**ON, "reuse_cooldown_time": time})
    assert replay_of(plan).cooldown_steps == steps


@pytest.mark.parametrize(
    ("time", "seconds"), [("30s", 30.0), ("0.5s", 0.5), ("5m", 300.0), ("2h", 7200.0), (30, 0.0)]
)
def test_a_cooldown_with_a_unit_is_time(time: float | str, seconds: float) -> None:
    found = replay_of(planned({**ON, "reuse_cooldown_time": time}))
    assert found.cooldown_seconds == seconds
    assert found.cooldown_steps == (30 if time == 30 else 1)


@pytest.mark.parametrize("time", ["30 s", "s", "30d", "-1s", "1e3s"])
def test_a_cooldown_of_another_unit_is_refused(tmp_path: Path, time: str) -> None:
    with pytest.raises(UserError, match="reuse_cooldown_time"):
        load(tmp_path, OLD_NAMES.replace("0.1", time))


def test_with_reuse_an_explore_step_is_enough_for_a_batch() -> None:
    once, again = planned(ON), planned({**ON, "reuse_cooldown_time": 1})
    assert (once.num_fresh_rows, once.total_train_steps) == (64, 5)
    assert (again.num_fresh_rows, again.total_train_steps) == (32, 10)
    assert [again.required_version(step) for step in (1, 2, 10)] == [0, 1, 9]


OLD_NAMES = """
project: demo
name: sums
model: {model_path: /models/tiny, max_model_len: 24}
algorithm: {algorithm_type: grpo, repeat_times: 8}
buffer:
  batch_size: 4
  total_steps: 10
  explorer_input:
    default_workflow_type: simple_workflow
    taskset: {name: train, path: /data/train.jsonl}
  trainer_input:
    experience_buffer:
      use_priority_queue: true
      reuse_cooldown_time: 0.1
      replay_buffer_kwargs: {priority_fn: decay_limit_randomization, sigma: 1.5}
"""


def test_names_of_old_releases_do_the_same(tmp_path: Path) -> None:
    plan = plan_experiment(load(tmp_path, OLD_NAMES)).stages[0]
    found = replay_of(plan)
    assert (found.priority_fn, found.cooldown_steps) == ("decay_limit_randomization", 1)
    assert found.priority_fn_args == {"decay": 2.0, "use_count_limit": 3, "sigma": 1.5}


def test_seconds_are_not_counted_and_that_is_said() -> None:
    assert said({**ON, "reuse_cooldown_time": 30}) == [
        "stage `main`: `replay_buffer.reuse_cooldown_time: 30` counts train steps, not seconds: a "
        "sample is trained again 30 steps later at the earliest; `30s` is seconds"
    ]
    assert not said({**ON, "reuse_cooldown_time": "30s"})
    assert not said({**ON, "reuse_cooldown_time": 0.5})


def test_what_has_no_effect_without_it_is_said() -> None:
    replay, capacity = said({"reuse_cooldown_time": 1}, capacity=5)
    assert "replay_buffer` has no effect: `replay_buffer.enable` is false" in replay
    assert "capacity: 5` has no effect: `replay_buffer.enable` is false" in capacity
    assert not said({})


@pytest.mark.parametrize(
    ("replay", "complaint"),
    [
        ({"priority_fn": "linear_decoy"}, "did you mean `linear_decay`"),
        ({"priority_fn_args": {"sigma": 1}}, "has no argument `priority_fn_args.sigma`"),
        ({"priority_fn_args": {"decay": "much"}}, "`priority_fn_args.decay` must be"),
        ({"priority_fn": "no_such_module.fn"}, "there is no module"),
        ({"priority_fn": "trinity.errors.UserError"}, "is not a function: write `def name("),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(
    replay: Mapping[str, object], complaint: str
) -> None:
    with pytest.raises(UserError, match=r"experience_buffer\.replay_buffer") as error:
        planned({**ON, **replay})
    assert complaint in str(error.value)


def test_a_buffer_holds_what_a_batch_takes() -> None:
    with pytest.raises(UserError, match="capacity: 63` is less than the 64 rollouts of a batch"):
        planned(ON, capacity=63)


def test_rows_of_files_have_an_order_of_their_own() -> None:
    with pytest.raises(UserError, match=r"again with `buffer\.total_epochs`"):
        stage(SFT, buffer={"trainer_input": {"experience_buffer": {"replay_buffer": ON}}})
