"""Checks GPUs and turns on one, serving, the monitor, and files and folders that a plan needs."""

import importlib.util
import netrc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from trinity.config.checks.data import (
    check_auxiliary_buffer,
    check_experience_buffer,
    check_number_of_tasks,
    check_taskset,
)
from trinity.config.checks.model import (
    check_auxiliary_model,
    check_critic,
    check_model,
    check_teacher,
)
from trinity.config.checks.packages import install_command
from trinity.config.checks.vision import check_vision
from trinity.config.error_collector import did_you_mean
from trinity.config.plan.experience_sink import check_sinks
from trinity.config.plan.placement import check_demand, cluster_gpus_of, gpu_demand_of
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.start_checkpoint import check_start_checkpoint
from trinity.config.plan.task_storage import expanded
from trinity.config.schema.experiment import MonitorConfig
from trinity.errors import UserError
from trinity.runtime.owned_places import check_folder
from trinity.user_code.hubs.place import HubPlace

ANOTHER_RUN = "give the experiment another `name`, or change `checkpoint_root_dir`"
"""What helps where the run's directory holds other things."""
MONITOR_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "wandb": ("base_url", "api_key"),
    "mlflow": ("uri", "username", "password"),
}
ALL_MONITOR_ARGUMENTS = tuple(name for names in MONITOR_ARGUMENTS.values() for name in names)
"""Not read by `tensorboard` and `none`, which a trial may use in place of another monitor."""
WANDB_ADDRESS = "https://api.wandb.ai"
WITHOUT_A_KEY = frozenset({"offline", "disabled", "dryrun", "shared"})
"""Values of WANDB_MODE."""
OF_THE_FILE = ("project", "group", "name")
"""Keys at the top of a file by which monitors name a run."""
Check = tuple[str, Callable[[], None]]
"""A check with the beginning of its message."""


def check_turns(plan: StagePlan) -> None:
    """Raises UserError with a line for each setting that does not go with turns."""
    if not plan.takes_turns:
        return
    errors = [f"`mode: colocate` {text}" for text in _conflicts(plan)]
    if errors:
        raise UserError("\n".join(errors))


def check_weight_update(plan: StagePlan) -> None:
    """Raises UserError with a line for each setting that does not go with `weight_update: keep`."""
    if not plan.keeps_requests:
        return
    is_style = plan.config.synchronizer.sync_style == "fully_async"
    key = "sync_style: fully_async" if is_style else "weight_update: keep"
    errors = [f"`synchronizer.{key}` {text}" for text in _conflicts_of_keep(plan)]
    if errors:
        raise UserError("\n".join(errors))


def _conflicts_of_keep(plan: StagePlan) -> Iterator[str]:
    if not plan.is_asynchronous:
        yield (
            "changes weights under runs, and `sync_offset: 0` names one version for each: give "
            "`synchronizer.sync_offset` from 1 on, `sync_style: trainer_driven`, or `drain`"
        )
    if plan.takes_turns:
        yield "generates while the trainer trains, and `mode: colocate` does not: give `both`"
    if plan.external_model is not None:
        yield "changes weights of an engine here, and the model is served elsewhere"
    if plan.config.algorithm.enable_router_replay:
        yield (
            "drops the record of experts (`algorithm.enable_router_replay`) with the cache: leave "
            "one of them out"
        )


def _conflicts(plan: StagePlan) -> Iterator[str]:
    """Yields an error text for each setting that does not work on a colocated GPU."""
    sync, cluster, explorer = plan.config.synchronizer, plan.config.cluster, plan.config.explorer
    two = "or `mode: both` with a GPU for each"
    if sync.sync_offset and explorer.rollout_model.sleep_level > 1:
        yield (
            f"with `synchronizer.sync_offset: {sync.sync_offset}` keeps unfinished rollouts while "
            "the trainer works, for which the engine must keep its weights: give "
            "`explorer.rollout_model.sleep_level: 1`, or `sync_offset: 0`"
        )
    if plan.has_dynamic_sync:
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
        if any(model.has_gpus for model in plan.auxiliary_models):
            yield (
                "has one engine, and `explorer.auxiliary_models` have more: let a server elsewhere "
                "answer for them (`external_model_config`), give a model that scores "
                "`engine_type: transformers`, or leave them out"
            )


def check_placement(plan: StagePlan) -> None:
    """Checks a stage's placement; raises UserError naming the setting."""
    if plan.config.cluster.gpu_per_node:
        check_demand(cluster_gpus_of(plan), gpu_demand_of(plan))


def check_serve_is_single_stage(stages: Sequence[StagePlan]) -> None:
    """Raises UserError if a serving stage, which never ends, is not the only stage."""
    if len(stages) > 1 and any(stage.mode == "serve" for stage in stages):
        names = ", ".join(f"`{stage.name}`" for stage in stages)
        raise UserError(
            f"`mode: serve` is one stage, and this file has {names}: write a file of the same "
            "`project`, `group` and `name` with `mode: serve` and without `stages`"
        )


def check_tool_calls(stage: StagePlan) -> None:
    """Raises UserError if tool calls are enabled but cannot be parsed."""
    rollout = stage.config.explorer.rollout_model
    if rollout.enable_auto_tool_choice and rollout.tool_call_parser is None:
        raise UserError(
            "`explorer.rollout_model.tool_call_parser` is missing: "
            "`enable_auto_tool_choice: true` needs it to find calls in responses, such as `hermes`"
        )


def check_best_taskset(stage: StagePlan) -> None:
    """Raises UserError if versions are to be compared by a taskset that is not evaluated."""
    asked = stage.config.explorer.best_taskset
    names = [taskset.name for taskset in stage.eval_tasksets]
    if not asked or not names or stage.headline_taskset in (asked, f"{asked}_eval"):
        return
    raise UserError(
        f"`explorer.best_taskset: {asked}` is none of the evaluation "
        f"tasksets: give one of {', '.join(names)}"
    )


def check_serving(stage: StagePlan) -> None:
    """Checks a serving stage; raises UserError naming the keys that do not go together."""
    explorer = stage.config.explorer
    if stage.mode != "serve":
        return
    running, engines = explorer.min_running_model_num, explorer.rollout_model.engine_num
    if running > engines:
        raise UserError(
            f"`explorer.min_running_model_num: {running}` is more than there "
            f"are engines (`explorer.rollout_model.engine_num: {engines}`): give {engines} or less"
        )


def check_monitor_args(monitor: MonitorConfig) -> None:
    """Checks a monitor's arguments; raises UserError with a line for each wrong one.

    Those of a monitor that was switched off stay as they are.
    """
    if monitor.monitor_type == "none":
        return
    known = MONITOR_ARGUMENTS.get(monitor.monitor_type, ALL_MONITOR_ARGUMENTS)
    errors = [
        wrong
        for name, value in monitor.monitor_args.items()
        if (wrong := _argument_error(monitor.monitor_type, name, value, known))
    ]
    if errors:
        raise UserError("\n".join(errors))


def _argument_error(monitor: str, name: str, value: object, known: tuple[str, ...]) -> str:
    key = f"`monitor.monitor_args.{name}`"
    if name in OF_THE_FILE:
        return ""
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
    """Raises UserError if the monitor's package is not installed; does not import it."""
    name = config.monitor_type
    if name in ("wandb", "mlflow") and importlib.util.find_spec(name) is None:
        raise UserError(
            f"`monitor.monitor_type: {name}` needs the package {name}, which is not installed "
            f"here: {install_command(name)}, or choose another monitor"
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


def check_inputs(plan: ExperimentPlan) -> None:
    """Checks the run's directory, models and data; raises UserError with a line for each error."""
    _raise_all(_checks(plan))


def check_local_inputs(stages: Sequence[StagePlan]) -> None:
    """Checks only data and vision models with files on this machine, which may not run them."""
    checks = [check for stage in stages for check in _data_checks(stage, only_here=True)]
    for stage in stages:
        checks.append((f"stage `{stage.name}`: ", partial(check_vision, stage, runs_here=False)))
    _raise_all(checks)


def _raise_all(checks: Iterable[Check]) -> None:
    errors: list[str] = []
    for what, check in checks:
        try:
            check()
        except UserError as error:
            errors.append(f"{what}{error}")
        except OSError as error:
            errors.append(f"{what}{error.filename} cannot be read: {error.strerror or error}")
    if errors:
        raise UserError("\n".join(dict.fromkeys(errors)))


def _checks(plan: ExperimentPlan) -> Iterator[Check]:
    yield "", partial(_check_writable, Path(plan.job_dir))
    yield "", partial(check_monitor, plan.stages[0].config.monitor)
    for stage in plan.stages:
        yield "", partial(check_model, stage)
        yield f"stage `{stage.name}`: ", partial(check_vision, stage)
        if stage.mode == "serve":
            continue
        yield "", partial(check_critic, stage)
        yield f"stage `{stage.name}`: ", partial(check_teacher, stage)
        for position in range(len(stage.auxiliary_models)):
            what = f"stage `{stage.name}`: "
            yield what, partial(check_auxiliary_model, stage, position)
        yield "", partial(check_start_checkpoint, stage)
        yield from _data_checks(stage)
        yield f"stage `{stage.name}`: ", partial(check_number_of_tasks, stage)
        yield f"stage `{stage.name}`: ", partial(_check_pipeline_file, stage)
        yield f"stage `{stage.name}`: ", partial(check_sinks, stage)


def _data_checks(stage: StagePlan, *, only_here: bool = False) -> Iterator[Check]:
    if stage.mode == "serve":
        return
    buffer = stage.experience_buffer
    if not only_here or _is_here(buffer.path):
        what = f"stage `{stage.name}`, experience buffer `{buffer.name}`: "
        yield what, partial(check_experience_buffer, buffer, stage)
    experts = stage.expert_buffer
    if experts is not None and (not only_here or _is_here(experts.path)):
        what = f"stage `{stage.name}`, auxiliary buffer `{experts.name}`: "
        yield what, partial(check_auxiliary_buffer, experts, stage)
    for taskset in (*stage.tasksets, *stage.eval_tasksets):
        if not only_here or _is_here(taskset.path):
            what = f"stage `{stage.name}`, taskset `{taskset.name}`: "
            yield what, partial(check_taskset, taskset)


def _is_here(path: str | None) -> bool:
    return path is not None and (HubPlace.parse(path) is not None or Path(path).exists())


def _check_pipeline_file(stage: StagePlan) -> None:
    """Raises UserError if the file of Data-Juicer's operators is not there."""
    pipeline = stage.config.data_processor.task_pipeline
    paths = {"task_pipeline.config_path": pipeline.config_path if pipeline else None}
    if _reads_files_here(stage):
        for place, operator in enumerate(stage.operators):
            if operator.name == "data_juicer":
                path = operator.args.get("config_path")
                paths[f"experience_pipeline.operators[{place}].args.config_path"] = (
                    path if isinstance(path, str) else None
                )
    for key, named in paths.items():
        if named and not expanded(named).is_file():
            raise UserError(
                f"`data_processor.{key}: {named}` is no file: correct it, or list `operators` in "
                "its place"
            )


def _reads_files_here(stage: StagePlan) -> bool:
    """True if Data-Juicer's server, which opens the files, is on this machine."""
    service = stage.config.service.data_juicer
    if service is None or service.auto_start:
        return service is not None
    host = urlsplit(service.server_url or "").hostname
    return host in ("localhost", "127.0.0.1", "::1")


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
    check_folder(job_dir, ANOTHER_RUN)
