"""Whether workflows and rewards are known, one's own are looked at; none of ours is imported."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from trinity.config.plan import ExperimentPlan
from trinity.config.plan_parts import ResolvedTaskset
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins, plugin_dirs_from_environment

TasksetCheck: TypeAlias = Callable[[ResolvedTaskset], None]


def check_known(plan: ExperimentPlan) -> None:
    """Look every name up; `trinity.launch.names` looks at the parts themselves too.

    Raises: UserError with a line for each name that is not known.
    """
    load_plugins(plugin_dirs_from_environment())
    check_tasksets(plan, (_check_workflow, _check_reward))


def check_tasksets(plan: ExperimentPlan, checks: Sequence[TasksetCheck]) -> None:
    """Call each check with each taskset; a default that is wrong is told once a stage.

    Raises: UserError with a line for each mistake.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for stage in plan.stages:
        for taskset in (*stage.tasksets, *stage.eval_tasksets):
            for check in checks:
                try:
                    check(taskset)
                except UserError as error:
                    found.setdefault((stage.name, str(error)), []).append(f"`{taskset.name}`")
    if found:
        raise UserError("\n".join(_line(*at, names) for at, names in found.items()))


def _line(stage: str, mistake: str, tasksets: Sequence[str]) -> str:
    noun = "taskset" if len(tasksets) == 1 else "tasksets"
    return f"stage `{stage}`, {noun} {', '.join(tasksets)}: {mistake}"


def _check_workflow(taskset: ResolvedTaskset) -> None:
    WORKFLOWS.check(taskset.workflow)
    if taskset.workflow not in WORKFLOWS.builtins:
        from trinity.workflows.workflow import Workflow  # which their own file has imported

        check_workflow(WORKFLOWS.get(taskset.workflow), Workflow, taskset.workflow)


def _check_reward(taskset: ResolvedTaskset) -> None:
    if taskset.reward is None:
        return
    REWARDS.check(taskset.reward)
    if taskset.reward not in REWARDS.builtins:
        from trinity.rewards.reward import check_reward  # takes numpy in, as their own file may

        check_reward(REWARDS.get(taskset.reward), taskset.reward_args, taskset.reward)


def check_workflow(part: object, base: type, name: str) -> None:
    """Raises: UserError when it is no workflow."""
    if not (isinstance(part, type) and issubclass(part, base)):
        raise UserError(f"{name} is no subclass of trinity.workflows.Workflow")
