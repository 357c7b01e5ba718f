"""Checks that every workflow and reward of a plan can be found, before anything starts."""

from collections.abc import Sequence

from trinity.config.checks.runtime import check_tasksets, check_workflow
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins, plugin_dirs_from_environment
from trinity.rewards.reward import check_reward
from trinity.workflows.math_rm_workflow import MathRMWorkflow
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.workflow import Workflow


def check_names(plan: ExperimentPlan) -> None:
    """Loads the plugins and looks up every name.

    Raises: UserError with a line for each part that cannot be used: the stage, the taskset, and
    names close to an unknown one.
    """
    load_plugins(plugin_dirs_from_environment())
    check_parts(plan.stages)


def check_parts(stages: Sequence[StagePlan]) -> None:
    """Checks the names of some stages after the plugins are loaded."""
    check_tasksets(stages, (_check_workflow, _check_reward))


def _check_workflow(taskset: ResolvedTaskset) -> None:
    workflow = WORKFLOWS.get(taskset.workflow)
    check_workflow(workflow, Workflow, taskset.workflow)
    needs_reward = workflow in (SimpleWorkflow, MathRMWorkflow)
    if needs_reward and taskset.reward is None and not taskset.format.reward_fn_key:
        raise UserError(
            f"{taskset.workflow} has no reward of its own: set `default_reward_fn_type`"
        )


def _check_reward(taskset: ResolvedTaskset) -> None:
    if taskset.reward is not None:
        check_reward(REWARDS.get(taskset.reward), taskset.reward_args, taskset.reward)
