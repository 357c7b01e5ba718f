"""Resuming: which settings may differ from the earlier run, and what that run left behind."""

import hashlib
import json
from pathlib import Path
from typing import Any

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.changes.plans import ChangedRun, compare_plans
from trinity.config.loading.keys import under
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.base import redact_secrets
from trinity.errors import UserError
from trinity.run.launch.content import ContentRecord, paths_of
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.types import JsonValue

PLAN_FILE = "config.json"

DIGEST_LEAVES_OUT = (
    *under(
        "buffer",
        "feedback_timeout keep_steps trainer_input.experience_buffer.on_bad_row",
    ),
    *("checkpoint_root_dir", "continue_from_checkpoint", "log", "monitor"),
    *under(
        "explorer",
        "isolate_user_code max_retry_times max_timeout on_bad_reward runner_per_model "
        "runs_per_runner rollout_model.api_key rollout_model.base_port "
        "rollout_model.enable_log_requests rollout_model.engine_num",
    ),
    "synchronizer.sync_timeout",
    *under("trainer", "keep_best max_checkpoints_to_keep rank_num resume_mode save_interval"),
)
"""Keys that the names of benches do not depend on."""
REASON = "its launcher ended without a word"


def check_resumable(
    plan: ExperimentPlan, *, accepts_changes: bool = False, accept_command: str = ""
) -> ChangedRun | None:
    """Compares the plan with the one that the directory's run was started with.

    Returns what differs; None where there is no run. Raises: UserError with a line for each change
    that is impossible, and one for those that `accept_command` accepts.
    """
    changed = changed_run(plan)
    if changed is not None:
        check_changes(changed, plan.job_dir, accepts_changes, accept_command)
    return changed


def check_changes(changed: ChangedRun, place: str, accepts_changes: bool, command: str) -> None:
    """Raises: UserError with a line for each change that the run in `place` cannot go on with."""
    errors = [
        f"{change} is impossible in the run in {place}: {change.why}; {change.instead}"
        for change in changed.impossible
    ]
    if changed.needs_acceptance and not accepts_changes:
        listed = ", ".join(str(change) for change in changed.needs_acceptance)
        accept = f"go on with them by `{command}`, " if command else ""
        errors.append(
            f"{place} holds a run with other settings, and these change the experiment: {listed}; "
            f"{accept}restore them, or give the experiment another `name`"
        )
    if errors:
        raise UserError("\n".join(errors))


def changed_run(plan: ExperimentPlan) -> ChangedRun | None:
    """Compares a plan with the run of its directory; None if no run was started.

    Raises: UserError if the directory does not record the plan that it was started with.
    """
    path = plan.job_path / PLAN_FILE
    if not path.exists():
        return None
    try:
        before = ExperimentPlan.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}, which says what the run in {plan.job_dir} was started with, cannot be read "
            f"({_first_line(error)}): restore it, start it with the version that wrote it, or give "
            "the experiment another `name`"
        ) from error
    return compare_plans(before, plan, ContentRecord(plan.job_path).is_same)


def keep_threads(plan: ExperimentPlan) -> ExperimentPlan:
    """Returns the plan with the threads that the directory's run began with: its bits repeat.

    A plan that was never started, and one that `check_resumable` refuses, stay as they are.
    """
    try:
        before = ExperimentPlan.model_validate_json((plan.job_path / PLAN_FILE).read_bytes())
    except (OSError, ValueError):
        return plan
    begun = {stage.name: stage.num_threads for stage in before.stages}
    stages = (
        stage.model_copy(update={"num_threads": begun.get(stage.name, stage.num_threads)})
        for stage in plan.stages
    )
    return plan.model_copy(update={"stages": tuple(stages)})


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def resume_digest(plan: ExperimentPlan) -> str:
    """Returns the same digest for two plans of the same stages with the same fixed settings."""
    values = _without_secrets(plan)
    fixed = [values["seed"], *(_fixed(stage["config"]) for stage in values["stages"])]
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:8]


def _fixed(value: JsonValue, at: str = "") -> JsonValue:
    """Returns the value without the keys that make no other bench."""
    if not isinstance(value, dict):
        return value
    keys = {name: f"{at}.{name}".lstrip(".") for name in value}
    return {name: _fixed(value[name], key) for name, key in keys.items() if not _is_left_out(key)}


def store_plan(plan: ExperimentPlan) -> None:
    """Stores the plan for the next start, without its API keys and passwords."""
    ContentRecord(plan.job_path).add(paths_of(plan))
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


def _is_left_out(key: str) -> bool:
    return any(key == name or key.startswith(name + ".") for name in DIGEST_LEAVES_OUT)


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
