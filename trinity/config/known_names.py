"""Whether the names of workflows and rewards are known; nothing that is ours is imported for it."""

from trinity.config.plan import ExperimentPlan
from trinity.config.plan_parts import ResolvedTaskset
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins, plugin_dirs_from_environment


def check_known(plan: ExperimentPlan) -> None:
    """Look every name up; `trinity.launch.names` looks at the parts themselves too.

    Raises: UserError with a line for each name that is not known.
    """
    load_plugins(plugin_dirs_from_environment())
    said = {
        f"stage `{stage.name}`, taskset `{taskset.name}`: {mistake}"
        for stage in plan.stages
        for taskset in (*stage.tasksets, *stage.eval_tasksets)
        for mistake in _mistakes(taskset)
    }
    if said:
        raise UserError("\n".join(sorted(said)))


def _mistakes(taskset: ResolvedTaskset) -> list[str]:
    found = []
    for registry, name in ((WORKFLOWS, taskset.workflow), (REWARDS, taskset.reward)):
        try:
            if name is not None:
                registry.check(name)
        except UserError as error:
            found.append(str(error))
    return found
