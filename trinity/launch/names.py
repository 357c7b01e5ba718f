"""Whether every workflow and reward that a plan names can be found, before anything starts."""

from trinity.config import ExperimentPlan
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins, plugin_dirs_from_environment


def check_names(plan: ExperimentPlan) -> None:
    """Load the plugins and look every name up.

    Raises: UserError naming the stage, the taskset and what is close to the unknown name.
    """
    load_plugins(plugin_dirs_from_environment())
    for stage in plan.stages:
        tasksets = (*((stage.taskset,) if stage.taskset else ()), *stage.eval_tasksets)
        for taskset in tasksets:
            try:
                WORKFLOWS.get(taskset.workflow)
                if taskset.reward is not None:
                    REWARDS.get(taskset.reward)
            except UserError as error:
                raise UserError(
                    f"stage `{stage.name}`, taskset `{taskset.name}`: {error}"
                ) from error
