"""The README of a published model, written from the record of its run."""

from collections.abc import Iterator
from pathlib import Path

import yaml

from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import UserError
from trinity.run.launch.resume import PLAN_FILE
from trinity.run.progress.summary import RunSummary, read_summary
from trinity.run.progress.view import Evaluation, failed_runs_text, shown_order
from trinity.weights.stored import StoredModel, best_model, newest_model

ADAPTER = "adapter_config.json"


def model_to_publish(job_dir: Path, *, newest: bool) -> StoredModel:
    """Returns the best version of the last stage that trained, or the newest, maybe a difference.

    Raises: UserError if the run has no weights.
    """
    for stage in reversed(_plan(job_dir).stages):
        found = newest_model(job_dir, stage.name, whole=False)
        if found is not None:
            return found if newest else best_model(job_dir, stage.name) or found
    raise UserError(f"{job_dir} has no weights yet: nothing to publish")


def model_card(job_dir: Path, model: StoredModel) -> str:
    """Returns the card of a version: origin, evaluations, configuration, versions of packages."""
    plan, summary = _plan(job_dir), read_summary(job_dir)
    stages = plan.stages[: [stage.name for stage in plan.stages].index(model.stage) + 1]
    return "\n".join(
        [
            "---",
            yaml.safe_dump(_metadata(stages, model), sort_keys=False).rstrip(),
            "---",
            f"# {plan.label}",
            "",
            f"Version {model.version} of stage `{model.stage}`, trained from "
            f"`{_without_folders(stages[0].model_path)}` with trinity-services (seed {plan.seed}).",
            "",
            *_evaluation_lines(summary, model),
            "## Training",
            "",
            *(_stage_line(stage) for stage in stages),
            *_amount_lines(summary),
            "",
            "```yaml",
            "\n---\n".join(map(_settings, stages)),
            "```",
            "",
        ]
    )


def _plan(job_dir: Path) -> ExperimentPlan:
    try:
        return ExperimentPlan.model_validate_json((job_dir / PLAN_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the plan of the run in {job_dir}: {error}") from error


def _metadata(stages: tuple[StagePlan, ...], model: StoredModel) -> dict[str, object]:
    is_adapter = (model.path / ADAPTER).exists()
    base = stages[0].model_path
    algorithms = dict.fromkeys(stage.algorithm.algorithm_type for stage in stages)
    return {
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        **({} if Path(base).is_absolute() else {"base_model": base}),
        "tags": ["trinity-services", "reinforcement-learning", *algorithms],
    }


def _evaluation_lines(summary: RunSummary | None, model: StoredModel) -> Iterator[str]:
    if summary is None:
        return
    done = [evaluation for stage in summary.stages for evaluation in stage.evaluations]
    own = [e for e in done if (e.stage, e.version) == (model.stage, model.version)]
    if not own:
        return
    before = {taskset.taskset: taskset.first for taskset in summary.tasksets}
    yield from ("## Evaluation", "", "| taskset | metric | before | this version | n |")
    yield "|---|---|---|---|---|"
    for evaluation in own:
        first = before.get(evaluation.taskset)
        yield from _rows(evaluation, first)
    yield ""


def _rows(evaluation: Evaluation, first: Evaluation | None) -> Iterator[str]:
    for name in shown_order(evaluation.metrics):
        value = evaluation.metrics[name]
        then = first.metrics.get(name) if first else None
        failed = failed_runs_text(evaluation)
        yield f"| {evaluation.taskset} | {name} | {then or ''} | {value} | {value.n}{failed} |"


def _stage_line(stage: StagePlan) -> str:
    return f"- `{stage.name}`: {stage.algorithm.algorithm_type} (mode {stage.mode})"


def _amount_lines(summary: RunSummary | None) -> Iterator[str]:
    if summary is not None:
        packages = ", ".join(f"{name} {number}" for name, number in summary.versions.items())
        yield ""
        yield f"{summary.steps:,} train steps on {summary.experiences:,} experiences; {packages}."


def _settings(stage: StagePlan) -> str:
    written = _without_folders(stage.config.model_dump(mode="json", exclude_defaults=True))
    assert isinstance(written, dict)
    return yaml.safe_dump({"stage_name": stage.name, **written}, sort_keys=False).rstrip()


def _without_folders(value: object) -> object:
    """Returns a value whose absolute paths are their last names: the others say who trained."""
    match value:
        case dict():
            return {key: _without_folders(inner) for key, inner in value.items()}
        case list():
            return [_without_folders(inner) for inner in value]
        case str() if value.startswith("/"):
            return Path(value).name
    return value
