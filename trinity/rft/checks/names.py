"""Checks that the workflows and rewards of a plan exist and can be called.

Built-in parts are looked up by name and not imported, so that `trinity config check` stays light.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

from trinity.config.checks.data import check_truths, sample_rows
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.plugins import (
    REWARDS,
    WORKFLOWS,
    load_plugins,
    plugin_dirs_from_environment,
)
from trinity.rft.checks.agents import check_agents
from trinity.runtime.settings import stage_variables
from trinity.user_code.columns import optional_column, row_reward

TasksetCheck: TypeAlias = Callable[[ResolvedTaskset], None]


def check_part_names(stages: Sequence[StagePlan]) -> None:
    """Looks up every name; `trinity.run.launch.prepare` checks the built-in parts, too.

    Raises: UserError with a line for each name that is not known.
    """
    load_plugins(plugin_dirs_from_environment())
    checks = (
        _check_workflow,
        check_agents,
        _check_reward,
        check_row_workflows,
        check_row_rewards,
    )
    check_tasksets(stages, checks)


def workflow_notices(stages: Sequence[StagePlan]) -> Iterator[str]:
    """Yields notices about users' workflows that tasksets name."""
    tasksets = (taskset for stage in stages for taskset in (*stage.tasksets, *stage.eval_tasksets))
    for name in dict.fromkeys(taskset.workflow for taskset in tasksets):
        if name not in WORKFLOWS.builtins:
            from trinity.rft.checks.workflow import notice_of  # imports bases of workflows

            with suppress(UserError):
                if notice := notice_of(WORKFLOWS.get(name), name):
                    yield notice


def check_row_workflows(taskset: ResolvedTaskset) -> None:
    """Checks the workflows that the first rows name; later ones are looked up when they are run.

    Raises: UserError when the column names one that is unknown or that cannot be run.
    """
    key = taskset.format.workflow_key
    if not key or taskset.task_pipeline is not None:
        return
    named = dict.fromkeys(optional_column(row, key) for row in sample_rows(taskset))
    for name in (str(name) for name in named if name):
        try:
            _check_workflow_name(name)
        except UserError as error:
            raise UserError(
                f"{error}; a row of this taskset has it in column `{key}` (`format.workflow_key`)"
            ) from error


def _check_workflow_name(name: str) -> None:
    WORKFLOWS.check_name(name)
    if name not in WORKFLOWS.builtins:
        from trinity.rft.checks.workflow import check_workflow  # imports bases of workflows

        check_workflow(WORKFLOWS.get(name), name)


def check_row_rewards(taskset: ResolvedTaskset) -> None:
    """Looks up the rewards that the first rows name; see `check_rewards_of_rows`."""
    check_rewards_of_rows(taskset, REWARDS.check_name)


def check_rewards_of_rows(taskset: ResolvedTaskset, check: Callable[[str], None]) -> None:
    """Checks the rewards that the first rows name; later ones are looked up when they are run.

    Raises: UserError when the column names a reward that `check` refuses, or neither a row nor the
    taskset names one.
    """
    key = taskset.format.reward_fn_key
    if not key or taskset.task_pipeline is not None:
        return
    for name in dict.fromkeys(optional_column(row, key) for row in sample_rows(taskset)):
        try:
            if name:
                check(row_reward(str(name)))
            elif taskset.reward is None:
                raise UserError("rows without a name have no reward: set `default_reward_fn_type`")
        except UserError as error:
            raise UserError(
                f"{error}; a row of this taskset has it in column `{key}` (`format.reward_fn_key`)"
            ) from error


def check_tasksets(stages: Sequence[StagePlan], checks: Sequence[TasksetCheck]) -> None:
    """Calls each check with each taskset; a wrong default is reported once per stage.

    Users' files may read the variables of their stage when they are imported.
    Raises: UserError with a line for each error.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for stage in stages:
        with stage_variables(stage.config.explorer.env_vars):
            for name, error in _taskset_errors(stage, checks):
                found.setdefault((stage.name, error), []).append(f"`{name}`")
    if found:
        raise UserError("\n".join(_line(*at, names) for at, names in found.items()))


def _taskset_errors(stage: StagePlan, checks: Sequence[TasksetCheck]) -> Iterator[tuple[str, str]]:
    for taskset in (*stage.tasksets, *stage.eval_tasksets):
        for check in checks:
            try:
                check(taskset)
            except UserError as error:
                yield taskset.name, str(error)


def _line(stage: str, error: str, tasksets: Sequence[str]) -> str:
    noun = "taskset" if len(tasksets) == 1 else "tasksets"
    return f"stage `{stage}`, {noun} {', '.join(tasksets)}: {error}"


def _check_workflow(taskset: ResolvedTaskset) -> None:
    WORKFLOWS.check_name(taskset.workflow)
    if taskset.workflow not in WORKFLOWS.builtins:
        from trinity.rft.checks.workflow import (  # imports bases of workflows
            check_workflow,
            has_no_reward,
            require_reward,
        )

        workflow = WORKFLOWS.get(taskset.workflow)
        check_workflow(workflow, taskset.workflow)
        require_reward(taskset, needs_one=has_no_reward(workflow))
    elif taskset.workflow_args:
        with suppress(ImportError):  # packages that are not installed are reported elsewhere
            WORKFLOWS.get(taskset.workflow).check_args(taskset.workflow_args)


def _check_reward(taskset: ResolvedTaskset) -> None:
    if taskset.reward is None:
        return
    REWARDS.check_name(taskset.reward)
    if taskset.reward not in REWARDS.builtins:
        # imports numpy, as the user's file may
        from trinity.rewards.reward import BoundReward, check_reward

        reward = REWARDS.get(taskset.reward)
        check_reward(reward, taskset.reward_args, taskset.reward)
        if BoundReward(reward, taskset.reward_args, taskset.reward).needs_truth:
            check_truths(taskset)
