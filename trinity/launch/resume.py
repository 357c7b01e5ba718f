"""Resuming: which settings may differ from the earlier run, and what that run left behind."""

import hashlib
import json
from pathlib import Path
from typing import Any

from trinity.algorithm.units import UNIT_ARGUMENT, UNIT_BEFORE
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.base import redact_secrets
from trinity.config.schema.experiment import SINGLE_STAGE, Config
from trinity.errors import UserError
from trinity.rpc.limits import CALL_SECONDS
from trinity.types import JsonValue

PLAN_FILE = "config.json"

# Keys that may differ from the run being resumed: they change how long it runs, what it writes and
# how it is watched, not what has been computed so far. The number of ranks of a stage is compared
# separately.
CHANGEABLE = (
    "buffer.feedback_timeout",
    "buffer.keep_steps",
    "buffer.trainer_input.experience_buffer.on_bad_row",
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "explorer.isolate_user_code",
    "explorer.max_retry_times",
    "explorer.max_timeout",
    "explorer.on_bad_reward",
    "explorer.rollout_model.api_key",
    "explorer.rollout_model.base_port",
    "explorer.rollout_model.enable_log_requests",
    "explorer.rollout_model.engine_num",
    "explorer.runner_per_model",
    "explorer.runs_per_runner",
    "log",
    "monitor",
    "synchronizer.sync_timeout",
    "trainer.max_checkpoints_to_keep",
    "trainer.rank_num",
    "trainer.resume_mode",
    "trainer.save_interval",
)
REASON = "its launcher ended without a word"


def check_resumable(plan: ExperimentPlan) -> None:
    """Compares the plan with the one that the directory's run was started with.

    Raises: UserError naming the keys that may not change within a run, or the number of ranks.
    """
    path = plan.job_path / PLAN_FILE
    if not path.exists():
        return
    now = _without_secrets(plan)
    try:
        before = redact_secrets("", json.loads(path.read_text()))
        changed = _changed(before, now)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}, which says what the run in {plan.job_dir} was started with, cannot be read "
            f"({error}): restore it, or give the experiment another `name`"
        ) from error
    if refused := sorted(key for key in changed if not _may_change(key)):
        raise UserError(
            f"{plan.job_dir} holds a run with other settings of {', '.join(refused)}: "
            "resume it with those it was started with, or give the experiment another `name`"
        )
    _check_ranks(plan, before)


def kept_defaults(plan: ExperimentPlan) -> dict[str, JsonValue]:
    """Returns, by key, what the directory's run began with where this file leaves the key out.

    These keys have had other defaults: a run goes on with the values that it was started with.
    """
    path = plan.job_path / PLAN_FILE
    if not path.exists():
        return {}
    try:
        before = json.loads(path.read_text())["stages"]
        pairs = list(zip(before, plan.stages, strict=False))
        kept = [_kept_of_stage(old, stage) for old, stage in pairs]
    except (ValueError, KeyError, TypeError):
        return {}  # `check_resumable` says that it is damaged
    is_single = len(plan.stages) == 1 and plan.stages[0].name == SINGLE_STAGE
    return {
        key if is_single else f"stages[{index}].{key}": value
        for index, values in enumerate(kept)
        for key, value in values.items()
    }


def _kept_of_stage(old: dict[str, Any], stage: StagePlan) -> dict[str, JsonValue]:
    """Compares the values that act, for the configuration of before had another default."""
    kept: dict[str, JsonValue] = {}
    shortest = old["config"]["model"].get("min_response_tokens", 0)
    model = stage.config.model
    if "min_response_tokens" not in model.model_fields_set and shortest != (
        model.min_response_tokens
    ):
        kept["model.min_response_tokens"] = shortest
    times = old["algorithm"]["repeat_times"]
    if stage.config.algorithm.repeat_times is None and times != stage.algorithm.repeat_times:
        kept["algorithm.repeat_times"] = times
    return kept


def as_started(plan: ExperimentPlan) -> ExperimentPlan:
    """Returns the plan with the units of baselines that the directory's run began with.

    A run of the version before counted samples, and its file does not say so.
    """
    path = plan.job_path / PLAN_FILE
    return with_units_of(plan, path.read_text()) if path.exists() else plan


def with_units_of(plan: ExperimentPlan, former: str) -> ExperimentPlan:
    """Returns the plan with the units of a former plan, but those that the configuration gives."""
    try:
        before = json.loads(former)["stages"]
        units = {stage["name"]: _unit_of(stage["algorithm"]) for stage in before}
    except (ValueError, KeyError, TypeError):
        return plan  # `check_resumable` says what is wrong with it
    stages = tuple(_with_unit(stage, units.get(stage.name)) for stage in plan.stages)
    return plan.model_copy(update={"stages": stages})


def _unit_of(algorithm: dict[str, Any]) -> JsonValue:
    arguments: dict[str, JsonValue] = algorithm["advantage_fn_args"]
    return arguments.get(UNIT_ARGUMENT, UNIT_BEFORE)


def _with_unit(stage: StagePlan, unit: JsonValue) -> StagePlan:
    arguments = stage.algorithm.advantage_fn_args
    is_given = UNIT_ARGUMENT in stage.config.algorithm.advantage_fn_args
    if unit is None or is_given or arguments.get(UNIT_ARGUMENT, unit) == unit:
        return stage
    changed = {"advantage_fn_args": {**arguments, UNIT_ARGUMENT: unit}}
    return stage.model_copy(update={"algorithm": stage.algorithm.model_copy(update=changed)})


def _check_ranks(plan: ExperimentPlan, before: dict[str, Any]) -> None:
    """Refuses another number of ranks: a checkpoint has one part per rank."""
    for old, stage in zip(before["stages"], plan.stages, strict=True):
        had, has = old.get("trainer_rank_num"), stage.trainer_rank_num
        if stage.needs_training and had not in (None, has):
            raise UserError(
                f"{plan.job_dir} holds a run that trains stage `{stage.name}` on {had} "
                f"rank{'s' if had != 1 else ''}, and with these settings there are {has}, which "
                f"its checkpoints do not fit: set `trainer.rank_num: {had}`, or keep "
                "`explorer.rollout_model.engine_num` as it was"
            )


def resume_digest(plan: ExperimentPlan) -> str:
    """Returns the same digest for two plans of the same stages if one may resume the other."""
    values = _without_secrets(plan)
    fixed = [values["seed"], *(_fixed(stage["config"]) for stage in values["stages"])]
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:8]


def _fixed(value: JsonValue, at: str = "") -> JsonValue:
    """Returns the value without the keys that may change."""
    if not isinstance(value, dict):
        return value
    keys = {name: f"{at}.{name}".lstrip(".") for name in value}
    return {name: _fixed(value[name], key) for name, key in keys.items() if not _may_change(key)}


def store_plan(plan: ExperimentPlan) -> None:
    """Stores the plan for the next start, without its API keys and passwords."""
    path = plan.job_path / PLAN_FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(_without_secrets(plan), indent=1))
    temporary.replace(path)


def has_run(job_dir: Path) -> bool:
    """Returns true when a run was started in this directory before."""
    return (job_dir / PLAN_FILE).exists()


def _without_secrets(plan: ExperimentPlan) -> dict[str, Any]:
    """Returns the plan's values; an API key that was replaced does not make it another run."""
    values: dict[str, Any] = redact_secrets("", plan.model_dump(mode="json"))
    return values


def _changed(before: dict[str, Any], now: dict[str, Any]) -> set[str]:
    changed: set[str] = set()
    if [stage["name"] for stage in before["stages"]] != [stage["name"] for stage in now["stages"]]:
        changed.add("stages")
    for old, new in zip(before["stages"], now["stages"], strict=False):
        # A key added since the run was started had its default then.
        complete = json.loads(Config.model_validate(old["config"]).model_dump_json())
        if complete["algorithm"]["repeat_times"] is None:
            complete["algorithm"]["repeat_times"] = _times_of_before(old, new)
        changed |= _differences(complete, new["config"])
    if before["seed"] != now["seed"]:
        changed.add("seed")
    return changed


def _times_of_before(old: dict[str, Any], new: dict[str, Any]) -> JsonValue:
    """Returns the number that a run had by default, to be compared with a written one."""
    is_written = new["config"]["algorithm"]["repeat_times"] is not None
    times: JsonValue = old["algorithm"]["repeat_times"] if is_written else None
    return times


def _may_change(key: str) -> bool:
    return any(key == allowed or key.startswith(allowed + ".") for allowed in CHANGEABLE)


def _differences(old: JsonValue, new: JsonValue, at: str = "") -> set[str]:
    """Returns the dotted keys at which two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        found: set[str] = set()
        for key in old.keys() | new.keys():
            found |= _differences(old.get(key), new.get(key), f"{at}.{key}".lstrip("."))
        return found
    return set() if old == new else {at}


async def cancel_stale_experiments(
    synchronizer: SynchronizerServiceStub, plan: ExperimentPlan
) -> list[str]:
    """Cancels all experiments but the plan's own, and returns their labels.

    Services take the oldest experiment first. Call it only where the directory's lock covers the
    database: then no other launcher is alive. An experiment cancelled here continues when it is
    started again.
    """
    cancelled = []
    for experiment in await _running(synchronizer):
        if (experiment.tenant, experiment.label) != (plan.tenant, plan.label):
            request = pb.CancelExperimentRequest(experiment_id=experiment.id, reason=REASON)
            await synchronizer.CancelExperiment(request, timeout=CALL_SECONDS)
            cancelled.append(experiment.label)
    return cancelled


async def _running(synchronizer: SynchronizerServiceStub) -> list[pb.Experiment]:
    """Returns all running experiments: a status lists only the newest."""
    request = pb.WatchExperimentsRequest()
    async for answer in synchronizer.WatchExperiments(
        request, timeout=CALL_SECONDS, wait_for_ready=True
    ):
        return list(answer.experiments)
    return []
