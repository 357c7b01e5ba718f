"""Plans of the modes `bench` and `serve`, which use the checkpoints of an earlier run."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.parts import EvaluatedRun, ServedRun
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.stored_rollouts import UNKNOWN
from trinity.config.schema.base import redact_secrets
from trinity.errors import UserError
from trinity.run.launch.resume import PLAN_FILE, has_run, resume_digest
from trinity.run.launch.stored_runs import StoredRun
from trinity.run.progress.summary import read_finished
from trinity.runtime.security.credentials import VARIABLE, Credentials
from trinity.runtime.security.loopback import is_loopback
from trinity.weights.manifest import MANIFEST_NAME, read_regular_file

FOLDER = "bench"
EVALUATED_BY = (
    "eval_tasksets",
    "chat_template",
    "max_model_len",
    "max_prompt_tokens",
    "max_response_tokens",
    "min_response_tokens",
)
CHECKPOINT = re.compile(r"step-(\d+)-\d+")
SUFFIX = "-serve"
KEY_FILE = "api_key"


def is_bench(plan: ExperimentPlan) -> bool:
    """Returns true when the plan evaluates checkpoints."""
    return any(stage.mode == "bench" and stage.needs_training for stage in plan.stages)


def is_bench_of_model(plan: ExperimentPlan) -> bool:
    """Returns true when the plan evaluates models as they are: no run here has trained them."""
    only_benches = all(stage.mode == "bench" for stage in plan.stages)
    return only_benches and is_bench(plan) and not has_run(plan.job_path)


def model_bench_plan(plan: ExperimentPlan) -> ExperimentPlan:
    """Returns the plan without a trainer, in a directory next to that of a later run.

    The directory's name depends on the settings, so other tasksets use another directory.

    Raises: UserError if the evaluation has no tasks.
    """
    for stage in plan.stages:
        _check_has_tasksets(stage, "the model")
    suffix = f"-{FOLDER}-{resume_digest(plan)}"
    stages = [
        stage.model_copy(update={"roles": ("explorer",), "trainer_rank_num": 0})
        for stage in plan.stages
    ]
    return plan.model_copy(
        update={
            "label": f"{plan.label}{suffix}",
            "job_dir": f"{plan.job_dir}{suffix}",
            "stages": tuple(stages),
        }
    )


def started_data_juicer(plan: ExperimentPlan) -> int | None:
    """Returns the port of the Data-Juicer server that the plan wants started and asks."""
    for stage in plan.stages:
        juicer = stage.config.service.data_juicer
        if juicer is not None and juicer.started_port and juicer.address in server_urls(stage):
            return juicer.started_port
    return None


def server_urls(stage: StagePlan, only: str = "") -> list[str]:
    """Returns the servers that operators of a stage, or those of one name, send rows to."""
    buffers = (stage.experience_buffer, *stage.auxiliary_buffers)
    pipelines = [taskset.task_pipeline for taskset in (*stage.tasksets, *stage.eval_tasksets)]
    pipelines += [rows.task_pipeline for rows in buffers]
    used = [(operator.name, operator.args) for operator in stage.operators]
    for pipeline in pipelines:
        used += (
            [(operator.name, operator.args) for operator in pipeline.operators] if pipeline else []
        )
    return [
        str(args["server_url"])
        for name, args in used
        if only in ("", name) and "server_url" in args
    ]


def bench_plan(plan: ExperimentPlan) -> ExperimentPlan:
    """Returns the stages of mode bench, with their own directory inside the run's.

    The directory's name depends on the newest checkpoint and the settings. After more training or
    with other tasksets, another directory is used, and only new combinations are evaluated.

    Raises: UserError if there are no weights or no tasks to evaluate.
    """
    if not has_run(plan.job_path):
        raise UserError(
            f"{plan.job_dir} holds no run whose checkpoints could be evaluated: train it first, "
            "then start it with `mode=bench`, or give every stage `mode: bench` to evaluate the "
            "model as it is"
        )
    stages = [stage for stage in plan.stages if stage.mode == "bench" and stage.needs_training]
    checkpoints = [_newest_checkpoint(plan, stage) for stage in stages]
    newest = "-".join(str(checkpoint.step) for checkpoint in checkpoints)
    which = "newest" if stages[0].config.explorer.bench_on_latest_checkpoint else "step"
    settings = resume_digest(plan.model_copy(update={"stages": tuple(stages)}))
    name = f"{which}-{newest}-{settings}"
    known = list(_known_versions(plan, name))
    made = [
        _with_ranks(stage, checkpoint.path).model_copy(
            update={"index": index, "benched": _benched(stage, known)}
        )
        for index, (stage, checkpoint) in enumerate(zip(stages, checkpoints, strict=True))
    ]
    return plan.model_copy(
        update={
            "label": f"{plan.label}-{FOLDER}-{name}",
            "job_dir": str(plan.job_path / FOLDER / name),
            "stages": tuple(made),
        }
    )


def _check_has_tasksets(stage: StagePlan, evaluated: str) -> None:
    if not stage.eval_tasksets:
        raise UserError(
            f"stage `{stage.name}`: `buffer.explorer_input.eval_tasksets` is missing: "
            f"`mode: bench` evaluates {evaluated} on them"
        )


class _Checkpoint(NamedTuple):
    step: int
    path: Path


def _newest_checkpoint(plan: ExperimentPlan, stage: StagePlan) -> _Checkpoint:
    _check_has_tasksets(stage, "checkpoints")
    folder = plan.job_path / "stages" / stage.name / "checkpoints"
    paths = list(folder.iterdir()) if folder.is_dir() else []
    found = [
        _Checkpoint(int(name[1]), path)
        for path in paths
        if (name := CHECKPOINT.fullmatch(path.name))
    ]
    if not found:
        raise UserError(
            f"stage `{stage.name}` of the run in {plan.job_dir} has no checkpoint: give the stage "
            "the name it has there, or train with `trainer.save_interval`"
        )
    return max(found)


def _with_ranks(stage: StagePlan, checkpoint: Path) -> StagePlan:
    """Returns the stage with the ranks that wrote its checkpoints, and that can read them."""
    try:
        content = json.loads(read_regular_file(checkpoint / MANIFEST_NAME))
        ranks = int(content.get("num_ranks", 1))
    except (OSError, ValueError):
        return stage  # the trainer says which file is damaged
    return stage.model_copy(update={"trainer_rank_num": ranks})


@dataclass(frozen=True, slots=True)
class _EvaluatedVersion:
    stage: str
    version: int
    how: str


def _known_versions(plan: ExperimentPlan, name: str) -> Iterator[_EvaluatedVersion]:
    """Yields the versions that earlier starts have evaluated, and with which settings."""
    for folder in sorted((plan.job_path / FOLDER).glob("*")):
        summary = read_finished(folder) if folder.name != name else None
        if summary is None:
            continue
        stored = ExperimentPlan.model_validate_json((folder / PLAN_FILE).read_bytes())
        digests = {stage.name: _how(stage) for stage in stored.stages}
        for stage in summary.stages:
            for version in {done.version for done in stage.evaluations}:
                yield _EvaluatedVersion(stage.name, version, digests[stage.name])


def _how(stage: StagePlan) -> str:
    """Returns the settings that an evaluation's metrics depend on, besides the weights."""
    values = stage.model_dump(mode="json", include=set(EVALUATED_BY))
    values["eval_failed_runs"] = stage.config.explorer.eval_failed_runs
    return json.dumps(redact_secrets("", values))


def _benched(stage: StagePlan, known: list[_EvaluatedVersion]) -> EvaluatedRun:
    versions = {
        entry.version for entry in known if (entry.stage, entry.how) == (stage.name, _how(stage))
    }
    return EvaluatedRun(
        experiment_id=UNKNOWN, stage=stage.name, known_versions=tuple(sorted(versions))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSource:
    """Adds to a plan what only the running stack knows."""

    run: StoredRun

    async def complete_plan(
        self, synchronizer: SynchronizerServiceStub, made: ExperimentPlan
    ) -> ExperimentPlan:
        """Returns the plan with the run's id and the weights that its stages started from."""
        experiment = await self.run.experiment(synchronizer)
        made.job_path.mkdir(parents=True, exist_ok=True)
        stages = []
        for stage in made.stages:
            assert stage.benched is not None, "it is a plan of this module"
            benched = stage.benched.model_copy(update={"experiment_id": experiment.id})
            began = self.run.with_initial_weights(experiment, stage)
            stages.append(began.model_copy(update={"benched": benched}))
        return made.model_copy(update={"stages": tuple(stages)})


def is_serve(plan: ExperimentPlan) -> bool:
    """Returns true when the plan serves a model."""
    return any(stage.mode == "serve" for stage in plan.stages)


def serve_plan(plan: ExperimentPlan) -> ExperimentPlan:
    """Uses a directory next to the run's: the run may continue, or not exist yet."""
    [stage] = plan.stages
    own_dir = f"{plan.job_dir}{SUFFIX}"
    served = ServedRun(job_dir=plan.job_dir, key_file=f"{own_dir}/{KEY_FILE}")
    return plan.model_copy(
        update={
            "label": f"{plan.label}{SUFFIX}",
            "job_dir": own_dir,
            "stages": (stage.model_copy(update={"served": served}),),
        }
    )


def check_reach(plan: ExperimentPlan, *, secure: bool) -> None:
    """Refuses an address that other machines reach without certificates and tokens.

    Raises: UserError.
    """
    if not is_serve(plan) or secure or Credentials.from_environment().is_on:
        return
    host = plan.stages[0].config.explorer.listen_address
    if not is_loopback(host):
        raise UserError(
            f"refusing to serve at `explorer.listen_address: {host}`, where other machines reach "
            "it, without TLS and tokens: use 127.0.0.1, start it with `trinity run --secure`, or "
            f"set {VARIABLE} to a folder that `trinity certs` has made"
        )
