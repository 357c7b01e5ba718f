"""Checks a stage whose engine and trainer use one GPU by turns (`mode: colocate`)."""

from collections.abc import Iterator

from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError


def check_turns(plan: StagePlan) -> None:
    """Raises UserError with a line for each setting that does not go with turns."""
    if not plan.takes_turns:
        return
    errors = [f"stage `{plan.name}`: `mode: colocate` {text}" for text in _conflicts(plan)]
    if errors:
        raise UserError("\n".join(errors))


def _conflicts(plan: StagePlan) -> Iterator[str]:
    """Yields what each setting would need that turns on one GPU do not have."""
    sync, cluster, explorer = plan.config.synchronizer, plan.config.cluster, plan.config.explorer
    two = "or `mode: both` with a GPU for each"
    if sync.sync_offset:
        yield (
            f"lets the engine sleep while the trainer works, and `synchronizer.sync_offset: "
            f"{sync.sync_offset}` keeps rollouts going meanwhile; none is kept unfinished over a "
            f"turn: give 0, {two}"
        )
    elif plan.has_dynamic_sync:
        yield (
            "trains when an explore step is over, and `synchronizer.sync_style: "
            f"{sync.sync_style}` lets rollouts go on: give `fixed`, {two}"
        )
    if cluster.node_num > 1:
        yield f"is one machine with one GPU, and `cluster.node_num` is {cluster.node_num}: give 1"
    if plan.trainer_rank_num > 1:
        yield f"trains with one rank, and `trainer.rank_num` is {plan.trainer_rank_num}: give 1"
    if plan.external_model is not None:
        yield "shares a GPU with an engine, and the model is served elsewhere: give `mode: both`"
    if not cluster.gpu_per_node:  # with GPUs, placement counts engines
        engines = explorer.rollout_model.engine_num
        if engines > 1:
            yield f"has one engine, and `explorer.rollout_model.engine_num` is {engines}: give 1"
        if any(model.external is None for model in plan.auxiliary_models):
            yield (
                "has one engine, and `explorer.auxiliary_models` have more: let a server elsewhere "
                "answer for them (`external_model_config`), or leave them out"
            )
