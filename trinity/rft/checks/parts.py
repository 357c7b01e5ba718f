"""Looks every named part up and checks how it can be called; built-in parts are imported."""

from collections.abc import Sequence

from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.rewards.reward import check_reward
from trinity.rft.checks.agents import check_agents
from trinity.rft.checks.names import check_rewards_of_rows, check_row_workflows, check_tasksets
from trinity.rft.checks.workflow import check_workflow, has_no_reward, require_reward
from trinity.workflows.math_rm_workflow import MathRMWorkflow
from trinity.workflows.simple_workflow import SimpleWorkflow


def check_parts(stages: Sequence[StagePlan]) -> None:
    """Checks the names of some stages after the plugins are loaded."""
    checks = (
        _check_workflow,
        check_agents,
        _check_reward,
        check_row_workflows,
        _check_row_rewards,
    )
    check_tasksets(stages, checks)


def _check_workflow(taskset: ResolvedTaskset) -> None:
    workflow = WORKFLOWS.get(taskset.workflow)
    check_workflow(workflow, taskset.workflow)
    is_ours = workflow in (SimpleWorkflow, MathRMWorkflow)
    require_reward(taskset, needs_one=is_ours or has_no_reward(workflow))


def _check_reward(taskset: ResolvedTaskset) -> None:
    if taskset.reward is not None:
        check_reward(REWARDS.get(taskset.reward), taskset.reward_args, taskset.reward)


def _check_row_rewards(taskset: ResolvedTaskset) -> None:
    def check(name: str) -> None:
        check_reward(REWARDS.get(name), taskset.reward_args, name)

    check_rewards_of_rows(taskset, check)
