"""Checks that engines and ranks fit the machines, if the cluster has GPUs."""

import contextlib
import importlib.util
import inspect
import netrc
import os
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from trinity.config.checks.data import (
    check_auxiliary_buffer,
    check_experience_buffer,
    check_number_of_tasks,
    check_taskset,
)
from trinity.config.checks.model import check_auxiliary_model, check_critic, check_model
from trinity.config.error_collector import did_you_mean
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.start_checkpoint import check_start
from trinity.config.schema.experiment import MonitorConfig
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins, plugin_dirs_from_environment


def check_placement(plan: StagePlan) -> None:
    """Checks a stage's placement; raises UserError naming the setting."""
    if not plan.config.cluster.gpu_per_node:
        return
    from trinity.sizing.placement import check_demand, cluster_gpus_of, gpu_demand_of

    try:
        check_demand(cluster_gpus_of(plan), gpu_demand_of(plan))
    except UserError as error:
        raise UserError(f"stage `{plan.name}`: {error}") from error


def check_alone(stages: Sequence[StagePlan]) -> None:
    """Raises UserError if a serving stage, which never ends, is not the only stage."""
    if len(stages) > 1 and any(stage.mode == "serve" for stage in stages):
        names = ", ".join(f"`{stage.name}`" for stage in stages)
        raise UserError(
            f"`mode: serve` is one stage, and this file has {names}: write a file of the same "
            "`project`, `group` and `name` with `mode: serve` and without `stages`"
        )


def check_tools(stage: StagePlan) -> None:
    """Raises UserError if tool calls are enabled but cannot be parsed."""
    rollout = stage.config.explorer.rollout_model
    if rollout.enable_auto_tool_choice and rollout.tool_call_parser is None:
        raise UserError(
            f"stage `{stage.name}`: `explorer.rollout_model.tool_call_parser` is missing: "
            "`enable_auto_tool_choice: true` needs it to find calls in responses, such as `hermes`"
        )


def check_serving(stage: StagePlan) -> None:
    """Checks a serving stage; raises UserError naming the keys that do not go together."""
    explorer = stage.config.explorer
    if stage.mode != "serve":
        return
    running, engines = explorer.min_running_model_num, explorer.rollout_model.engine_num
    if running > engines:
        raise UserError(
            f"stage `{stage.name}`: `explorer.min_running_model_num: {running}` is more than there "
            f"are engines (`explorer.rollout_model.engine_num: {engines}`): give {engines} or less"
        )


ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "wandb": ("base_url", "api_key"),
    "mlflow": ("uri", "username", "password"),
}
OF_ANY = tuple(name for names in ARGUMENTS.values() for name in names)
"""Not read by `tensorboard` and `none`, which a trial may use in place of another monitor."""
WANDB_ADDRESS = "https://api.wandb.ai"
WITHOUT_A_KEY = frozenset({"offline", "disabled", "dryrun", "shared"})
"""Values of WANDB_MODE."""


def check_monitor_args(monitor: MonitorConfig, stage: str) -> None:
    """Checks a monitor's arguments; raises UserError with a line for each wrong one."""
    known = ARGUMENTS.get(monitor.monitor_type, OF_ANY)
    mistakes = [
        f"stage `{stage}`: {wrong}"
        for name, value in monitor.monitor_args.items()
        if (wrong := _mistake(monitor.monitor_type, name, value, known))
    ]
    if mistakes:
        raise UserError("\n".join(mistakes))


def _mistake(monitor: str, name: str, value: object, known: tuple[str, ...]) -> str:
    key = f"`monitor.monitor_args.{name}`"
    if name not in known:
        return f"`{monitor}` has no argument {key}{did_you_mean(name, known)}"
    if value is not None and not isinstance(value, str):
        return f"{key} must be a text"
    return ""


def check_monitor(config: MonitorConfig) -> None:
    """Checks the package and the key; raises UserError if either is missing on this machine."""
    check_package(config)
    if config.monitor_type == "wandb":
        _check_key(config)


def check_package(config: MonitorConfig) -> None:
    """Raises UserError if the monitor's package is not installed; nothing is imported."""
    name = config.monitor_type
    if name in ("wandb", "mlflow") and importlib.util.find_spec(name) is None:
        raise UserError(
            f"`monitor.monitor_type: {name}` needs the package {name}, which is not installed "
            f"here: pip install 'trinity-services[{name}]', or choose another monitor"
        )


def _check_key(config: MonitorConfig) -> None:
    """Requires a key: W&B would ask for it at the terminal, or refuse the run much later."""
    address = config.monitor_args.get("base_url") or os.environ.get("WANDB_BASE_URL")
    has_key = config.monitor_args.get("api_key") or os.environ.get("WANDB_API_KEY")
    if has_key or os.environ.get("WANDB_MODE", "online") in WITHOUT_A_KEY:
        return
    if not _stands_in_netrc(str(address or WANDB_ADDRESS)):
        raise UserError(
            "`monitor.monitor_type: wandb` has no key: set WANDB_API_KEY, or `wandb login`, or "
            "set WANDB_MODE=offline to keep the runs in files that `wandb sync` sends later"
        )


def _stands_in_netrc(address: str) -> bool:
    file = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    try:
        return netrc.netrc(file).authenticators(urlsplit(address).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def check_workflow(part: object, base: type, name: str) -> None:
    """Raises UserError if a part is not a workflow, or one that cannot be made and run."""
    if not (isinstance(part, type) and issubclass(part, base)):
        raise UserError(f"{name} is not a subclass of trinity.workflows.Workflow")
    if isinstance(part, ABCMeta) and (abstract := sorted(part.__abstractmethods__)):
        raise UserError(f"{name} leaves {', '.join(abstract)} abstract: define it")
    _check_run(part, base, name)
    try:
        inspect.signature(part).bind(task=None, model=None)
    except TypeError as error:
        raise UserError(f"{name} cannot be made with task=... and model=...: {error}") from error
    except ValueError:  # the signature of a class written in C is unknown
        return


def _check_run(part: type, base: type, name: str) -> None:
    is_async = inspect.getattr_static(part, "is_async")
    if not isinstance(is_async, bool):  # a property: each instance has its own value
        return
    wanted = "run_async" if is_async else "run"
    if inspect.getattr_static(part, wanted) is inspect.getattr_static(base, wanted):
        why = ", which `is_async` asks for" if is_async else ""
        raise UserError(f"{name} defines no {wanted}{why}")


TasksetCheck: TypeAlias = Callable[[ResolvedTaskset], None]


def check_known(plan: ExperimentPlan) -> None:
    """Looks up every name; `trinity.launch.prepare` also checks the parts themselves.

    Raises: UserError with a line for each name that is not known.
    """
    load_plugins(plugin_dirs_from_environment())
    check_tasksets(plan.stages, (_check_workflow, _check_reward))


def check_tasksets(stages: Sequence[StagePlan], checks: Sequence[TasksetCheck]) -> None:
    """Calls each check with each taskset; a wrong default is reported once per stage.

    Users' files may read the variables of their stage when they are imported.
    Raises: UserError with a line for each error.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for stage in stages:
        with _variables(stage):
            for name, mistake in _mistakes(stage, checks):
                found.setdefault((stage.name, mistake), []).append(f"`{name}`")
    if found:
        raise UserError("\n".join(_line(*at, names) for at, names in found.items()))


def _mistakes(stage: StagePlan, checks: Sequence[TasksetCheck]) -> Iterator[tuple[str, str]]:
    for taskset in (*stage.tasksets, *stage.eval_tasksets):
        for check in checks:
            try:
                check(taskset)
            except UserError as error:
                yield taskset.name, str(error)


@contextlib.contextmanager
def _variables(stage: StagePlan) -> Iterator[None]:
    """Sets the variables of `explorer.env_vars` for the block."""
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in stage.config.explorer.env_vars.items()})
    try:
        yield
    finally:
        for name in stage.config.explorer.env_vars:
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def _line(stage: str, mistake: str, tasksets: Sequence[str]) -> str:
    noun = "taskset" if len(tasksets) == 1 else "tasksets"
    return f"stage `{stage}`, {noun} {', '.join(tasksets)}: {mistake}"


def _check_workflow(taskset: ResolvedTaskset) -> None:
    WORKFLOWS.check_name(taskset.workflow)
    if taskset.workflow not in WORKFLOWS.builtins:
        from trinity.workflows.workflow import Workflow  # the user's file has imported it

        check_workflow(WORKFLOWS.get(taskset.workflow), Workflow, taskset.workflow)


def _check_reward(taskset: ResolvedTaskset) -> None:
    if taskset.reward is None:
        return
    REWARDS.check_name(taskset.reward)
    if taskset.reward not in REWARDS.builtins:
        from trinity.rewards.reward import check_reward  # imports numpy, as the user's file may

        check_reward(REWARDS.get(taskset.reward), taskset.reward_args, taskset.reward)


def check_inputs(plan: ExperimentPlan) -> None:
    """Checks the run's directory, models and data; raises UserError with a line for each error."""
    mistakes: list[str] = []
    for what, check in _checks(plan):
        try:
            check()
        except UserError as error:
            mistakes.append(f"{what}{error}")
        except OSError as error:
            mistakes.append(f"{what}{error.filename} cannot be read: {error.strerror or error}")
    if mistakes:
        raise UserError("\n".join(dict.fromkeys(mistakes)))


def _checks(plan: ExperimentPlan) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields each check with the beginning of its message."""
    yield "", partial(_check_writable, Path(plan.job_dir))
    yield "", partial(check_monitor, plan.stages[0].config.monitor)
    for stage in plan.stages:
        yield "", partial(check_model, stage)
        if stage.mode == "serve":
            continue
        yield "", partial(check_critic, stage)
        for position in range(len(stage.auxiliary_models)):
            what = f"stage `{stage.name}`: "
            yield what, partial(check_auxiliary_model, stage, position)
        yield "", partial(check_start, stage)
        buffer = stage.experience_buffer
        what = f"stage `{stage.name}`, experience buffer `{buffer.name}`: "
        yield what, partial(check_experience_buffer, buffer, stage)
        for buffer in stage.auxiliary_buffers:
            what = f"stage `{stage.name}`, auxiliary buffer `{buffer.name}`: "
            yield what, partial(check_auxiliary_buffer, buffer)
        for taskset in (*stage.tasksets, *stage.eval_tasksets):
            what = f"stage `{stage.name}`, taskset `{taskset.name}`: "
            yield what, partial(check_taskset, taskset)
        yield f"stage `{stage.name}`: ", partial(check_number_of_tasks, stage)


def _check_writable(job_dir: Path) -> None:
    existing = next(place for place in (job_dir, *job_dir.parents) if place.exists())
    if not existing.is_dir():
        raise UserError(
            f"the run's directory {job_dir} cannot be made, {existing} is a file: "
            "change `checkpoint_root_dir`"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"the run's directory {job_dir} cannot be written, {existing} is read-only: "
            "change `checkpoint_root_dir`"
        )
