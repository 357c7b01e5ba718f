"""Stages of an experiment on one GPU take turns, all of them."""

from tests.unit.config.builders import IMITATION, REINFORCEMENT, config
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import deep_merge


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
