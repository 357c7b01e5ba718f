"""The demand of a stage's configuration: engines, ranks, and the sharing of GPUs."""

from collections.abc import Mapping

from trinity.config.plan.stage_plan import StagePlan
from trinity.sizing.placement import Demand, Engines, Machines


def machines_of(stage: StagePlan) -> Machines:
    """Reads section `cluster`."""
    cluster = stage.config.cluster
    return Machines(nodes=cluster.node_num, gpus_per_node=cluster.gpu_per_node)


def demand_of(stage: StagePlan) -> Demand:
    """Returns the stage's engines and ranks."""
    return Demand(
        mode=stage.mode,
        engines=engines_of(stage) if stage.needs_rollout or stage.mode != "train" else (),
        ranks=stage.trainer_rank_num if "trainer" in stage.roles else 0,
        sequence_parallel=sequence_parallel_of(stage),
    )


def engines_of(stage: StagePlan) -> tuple[Engines, ...]:
    """Returns the engines of the policy, then of auxiliary models, without external ones."""
    rollout = stage.config.explorer.model_dump().get("rollout_model")
    keys = rollout if isinstance(rollout, Mapping) else {}  # some keys are optional
    engines = [] if stage.external_model else [_engine("rollout engine", keys)]
    for model in stage.auxiliary_models:
        if model.external is None:
            engines.append(_engine(f"{model.name} engine", model.engine.model_dump()))
    return tuple(engines)


def _engine(name: str, keys: Mapping[str, object]) -> Engines:
    return Engines(
        name=name,
        num=_number(keys, "engine_num", 1),
        tensor_parallel=_number(keys, "tensor_parallel_size", 1),
        data_parallel=_number(keys, "data_parallel_size", 1),
        pipeline_parallel=_number(keys, "pipeline_parallel_size", 1),
        kind=str(keys.get("engine_type", "vllm")),
    )


def sequence_parallel_of(stage: StagePlan) -> int:
    """Returns the number of GPUs that share a sequence in training."""
    return _number(stage.config.trainer.model_dump(), "ulysses_sequence_parallel_size", 1)


def _number(keys: Mapping[str, object], key: str, default: int) -> int:
    value = keys.get(key)
    return value if isinstance(value, int) else default
