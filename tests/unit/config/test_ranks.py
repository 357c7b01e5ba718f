"""How many ranks a stage gets: GPUs are shared out once for all stages of a run."""

from collections.abc import Mapping

import pytest

from tests.unit.config.builders import IMITATION, REINFORCEMENT, SFT, config, stage
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

ELSEWHERE: Mapping[str, object] = {"external_model": {"enable": True, "model_name": "theirs"}}


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
