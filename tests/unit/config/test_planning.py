"""Plans share GPUs out once for all stages, and take tables of rows and examples of others."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, IMITATION, REINFORCEMENT, SFT, config, stage
from trinity.cli.experiment import stage_lines
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config, deep_merge
from trinity.errors import UserError

ELSEWHERE: Mapping[str, object] = {"external_model": {"enable": True, "model_name": "theirs"}}
ADDRESS = "postgresql://me:hidden@db:5432/data"


def staged(*stages: Mapping[str, object], **changes: object) -> Config:
    return config(stages=[*stages], **{"cluster": {"gpu_per_node": 8}, **changes})


def test_gpus_that_one_stage_rolls_out_on_are_trained_on_in_none() -> None:
    plan = plan_experiment(staged(IMITATION, REINFORCEMENT))
    assert [one.trainer_rank_num for one in plan.stages] == [7, 7]
    few = plan_experiment(staged({**IMITATION, "trainer": {"rank_num": 2}}, REINFORCEMENT))
    assert [one.trainer_rank_num for one in few.stages] == [2, 7]


def test_ranks_on_gpus_that_another_stage_rolls_out_on_are_refused_by_its_name() -> None:
    greedy = {**IMITATION, "trainer": {"rank_num": 8}}
    with pytest.raises(UserError, match=r"stage `sft`: rollout of stage `rft` takes 1 of 8 GPUs"):
        plan_experiment(staged(greedy, REINFORCEMENT))


def test_a_model_that_others_serve_takes_no_gpu_from_the_other_stages() -> None:
    explores = {"stage_name": "look", "mode": "explore", "model": ELSEWHERE}
    plan = plan_experiment(staged(explores, IMITATION))
    assert plan.stages[1].trainer_rank_num == 8


def test_stages_share_one_set_of_machines() -> None:
    alone = {**IMITATION, "cluster": {"gpu_per_node": 4}}
    with pytest.raises(UserError, match=r"stage `rft`: `cluster` is not that of stage `sft`"):
        plan_experiment(staged(alone, REINFORCEMENT))


@pytest.mark.parametrize(("wanted", "ranks"), [(0, 16), (16, 16), (8, 8)])
def test_ranks_are_on_one_machine_or_on_whole_ones(wanted: int, ranks: int) -> None:
    cluster = {"node_num": 2, "gpu_per_node": 8}
    assert stage(SFT, cluster=cluster, trainer={"rank_num": wanted}).trainer_rank_num == ranks
    message = r"12 ranks.*`cluster\.gpu_per_node: 8`.*whole ones"
    with pytest.raises(UserError, match=message):
        stage(SFT, cluster=cluster, trainer={"rank_num": 12})


def test_another_machine_may_roll_out() -> None:
    cluster = {"node_num": 2, "gpu_per_node": 8}
    rollout = {"rollout_model": {"engine_num": 8}}
    assert stage(cluster=cluster, explorer=rollout).trainer_rank_num == 8


def test_a_stage_before_turns_takes_turns_too() -> None:
    """Its trainer has the GPU while the engine of the next stage starts."""
    stages = [IMITATION, deep_merge(REINFORCEMENT, {"mode": "colocate"})]
    plan = plan_experiment(config(stages=stages, cluster={"gpu_per_node": 1}))
    assert [(stage.mode, stage.takes_turns) for stage in plan.stages] == [
        ("train", True),
        ("both", True),
    ]
    assert plan.takes_turns
    assert [stage.num_rank_gpus for stage in plan.stages] == [1, 1]


def test_a_plan_without_turns_takes_none() -> None:
    assert not plan_experiment(config(stages=[IMITATION, REINFORCEMENT])).takes_turns


def with_evaluation(*evals: dict[str, object]) -> dict[str, object]:
    return {"explorer_input": {"eval_tasksets": list(evals)}}


def test_an_evaluation_may_have_the_name_of_a_taskset_to_train_on() -> None:
    same: dict[str, object] = {"name": "train", "path": "/data/test.jsonl"}
    plan = plan_experiment(config(GRPO, buffer=with_evaluation(same)))
    (taskset,) = plan.stages[0].eval_tasksets
    assert taskset.name == "train_eval"


def test_two_evaluations_and_what_clients_submit_keep_their_names() -> None:
    test: dict[str, object] = {"name": "test", "path": "/data/test.jsonl"}
    client: dict[str, object] = {"name": "train", "storage_type": "client"}
    taken: dict[str, object] = {"name": "train_eval", "path": "/data/test.jsonl"}
    for evals in ([test, test], [client], [{**test, "name": "train"}, taken]):
        with pytest.raises(UserError, match="give each its own name"):
            plan_experiment(config(GRPO, buffer=with_evaluation(*evals)))


def test_lengths_of_an_auxiliary_model_each_bound_their_own_part() -> None:
    judge = {
        "model_path": "/models/judge",
        "max_model_len": 20,
        "max_prompt_tokens": 16,
        "max_response_tokens": 40,
    }
    plan = plan_experiment(config(GRPO, explorer={"auxiliary_models": [judge]}))
    (model,) = plan.stages[0].auxiliary_models
    assert (model.max_model_len, model.max_prompt_tokens) == (20, 16)
    assert model.sampling.max_tokens == 19
    lengths = {"max_prompt_tokens": 16, "max_response_tokens": 16}
    with pytest.raises(UserError, match=r"exceed `model\.max_model_len: 24`"):
        plan_experiment(config(GRPO, model=lengths))


def planned(**rows: object) -> StagePlan:
    return stage(SFT, buffer={"trainer_input": {"experience_buffer": rows}})


def test_the_table_is_called_like_the_buffer_or_as_it_is_said() -> None:
    found = planned(storage_type="sql", path=ADDRESS, name="answers").experience_buffer
    assert (found.storage_type, found.path, found.table) == ("sql", ADDRESS, "answers")
    named = planned(storage_type="sql", path=ADDRESS, table="public.rows")
    assert named.experience_buffer.table == "public.rows"


def test_a_file_of_sqlite_is_found_from_anywhere() -> None:
    found = planned(storage_type="sql", path="sqlite:///rows.db").experience_buffer
    assert found.path == f"sqlite:///{Path('rows.db').absolute()}"


def test_nobody_sees_the_password() -> None:
    lines = stage_lines(planned(storage_type="sql", path=ADDRESS, table="rows"))
    assert "  data           table rows of postgresql://me:***@db:5432/data" in lines


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ({"storage_type": "sql", "path": None}, "path` is missing: `storage_type: sql` reads it"),
        ({"storage_type": "sql", "path": "mysql://host/rows"}, "path` is not a database's address"),
        ({"storage_type": "file", "table": "x"}, "table` goes with `storage_type: sql` only"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    rows: Mapping[str, object], complaint: str
) -> None:
    with pytest.raises(UserError) as caught:
        planned(**rows)
    assert complaint in str(caught.value)
