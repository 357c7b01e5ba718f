"""Checks that engines and ranks fit the machines, if the cluster has GPUs."""

from trinity.config.plan import StagePlan
from trinity.errors import UserError


def check_placement(plan: StagePlan) -> None:
    """Checks a stage's placement; raises UserError naming the setting."""
    if not plan.config.cluster.gpu_per_node:
        return
    from trinity.sizing.demand import demand_of, machines_of
    from trinity.sizing.placement import check

    try:
        check(machines_of(plan), demand_of(plan))
    except UserError as error:
        raise UserError(f"stage `{plan.name}`: {error}") from error
