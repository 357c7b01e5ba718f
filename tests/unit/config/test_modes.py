"""What follows from a mode: who works, what is drawn, and where rows come from."""

import pytest

from tests.unit.config.builders import GRPO, config, stage
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config
from trinity.errors import UserError


def staged(*stages: dict[str, object], **changes: object) -> ExperimentPlan:
    return plan_experiment(config(GRPO, stages=list(stages), **changes))


LOOK: dict[str, object] = {"stage_name": "look", "mode": "explore"}
LEARN: dict[str, object] = {"stage_name": "learn", "mode": "train"}


def test_exploring_takes_explorers_alone() -> None:
    planned = stage(mode="explore")
    assert planned.roles == ("explorer",)
    assert planned.total_explore_steps == 10
    assert planned.num_train_steps(num_rows=100) == 0
    assert [planned.required_version(step) for step in (1, 5, 10)] == [0, 0, 0]


def test_a_stage_trains_on_what_the_nearest_one_before_has_explored() -> None:
    first, look, learn = staged(LOOK, {**LOOK, "stage_name": "again"}, LEARN).stages
    assert (first.stored_rollouts, look.stored_rollouts) == (None, None)
    assert learn.roles == ("trainer",)
    assert learn.has_rollouts
    assert learn.stored_rollouts is not None and learn.stored_rollouts.stage == "again"
    assert learn.train_batch_size == 4 * 8


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ((LEARN,), "an earlier stage of `mode: explore`, and there is none"),
        (
            (LOOK, {**LEARN, "algorithm": {"advantage_fn": "rloo"}}),
            "`algorithm.advantage_fn: rloo` with its arguments is not that of stage look",
        ),
        (
            (
                LOOK,
                {
                    **LEARN,
                    "buffer": {
                        "trainer_input": {"experience_buffer": {"replay_buffer": {"enable": True}}}
                    },
                },
            ),
            "stored experiences are trained in order",
        ),
        (({**LOOK, "algorithm": {"algorithm_type": "sft"}},), "runs in `mode: train`"),
    ],
)
def test_what_cannot_be_trained_later_is_said(
    stages: tuple[dict[str, object], ...], said: str
) -> None:
    with pytest.raises(UserError) as found:
        staged(*stages)
    assert said in str(found.value)


def rows_of_run(**buffer: object) -> dict[str, object]:
    return {"trainer_input": {"experience_buffer": buffer}}


@pytest.mark.parametrize(
    ("written", "label"),
    [("looked", "demo/looked"), ("other/looked", "other/looked"), ("a/b/c", "a/b/c")],
)
def test_a_run_is_named_as_its_directory_is(written: str, label: str) -> None:
    planned = stage(mode="train", buffer=rows_of_run(source_run=written, source_stage="look"))
    assert planned.stored_rollouts is not None
    assert (planned.stored_rollouts.run, planned.stored_rollouts.stage) == (label, "look")
    assert planned.has_rollouts and not planned.tasksets


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"buffer": rows_of_run(source_run="looked")}, "goes with `mode: train` and an algorithm"),
        (
            {"mode": "train", "buffer": rows_of_run(source_stage="look")},
            "`experience_buffer.source_stage` is a stage of another run",
        ),
        ({"mode": "train", "buffer": rows_of_run(source_run="sums")}, "is this run itself"),
        (
            {
                "mode": "train",
                "buffer": rows_of_run(source_run="looked", replay_buffer={"enable": True}),
            },
            "stored experiences are trained in order",
        ),
        (
            {
                "mode": "train",
                "buffer": {
                    "trainer_input": {
                        "experience_buffer": {"source_run": "looked"},
                        "auxiliary_buffers": {"more": {"source_run": "other"}},
                    }
                },
            },
            "experiences of another run are trained on by themselves",
        ),
    ],
)
def test_a_run_that_cannot_be_taken_from_is_said(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as found:
        stage(**changes)
    assert said in str(found.value)


def test_a_bench_draws_nothing_to_train_on_and_keeps_the_name_of_its_run() -> None:
    held_out = {"explorer_input": {"eval_tasksets": [{"path": "/data/test.jsonl"}]}}
    planned = stage(mode="bench", buffer=held_out)
    assert (planned.tasksets, planned.total_explore_steps) == ((), 0)
    assert len(planned.eval_tasksets) == 1
    assert set(planned.roles) == {"trainer", "explorer"}


@pytest.mark.parametrize(
    ("written", "name"),
    [("dynamic_by_explorer", "explorer_driven"), ("Trainer_Driven", "trainer_driven")],
)
def test_styles_are_known_by_both_names(written: str, name: str) -> None:
    found = Config.model_validate({**GRPO, "synchronizer": {"sync_style": written}})
    assert found.synchronizer.sync_style == name
    assert plan_experiment(found).stages[0].has_dynamic_sync


def test_corrections_are_asked_for_where_versions_are_not_tied_to_steps() -> None:
    with pytest.raises(UserError, match="sync_style: trainer_driven"):
        stage(
            algorithm={"bypass_old_logprobs": False},
            synchronizer={"sync_style": "trainer_driven"},
        )
