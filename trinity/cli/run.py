"""`trinity run`: an experiment from a YAML file to its results, on this machine."""

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.dry_run import describe
from trinity.config.plan import ExperimentPlan
from trinity.launch.gpus import check_gpus
from trinity.launch.hub import check_hub_models
from trinity.launch.prepare import Prepared, prepare
from trinity.launch.run import Interrupted, Run
from trinity.progress.reporter import make_reporter
from trinity.progress.summary import EvaluationSummary, RunSummary, read_finished

INTERRUPTED_EXIT_CODE = 130
PLUGIN_DIRS = "TRINITY_PLUGIN_DIRS"
PROGRAM = "trinity"

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The experiment's YAML file.", show_default=False)
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check everything and say what would be done.")
]
MaxStepsOption = Annotated[
    int | None,
    typer.Option("--max-steps", min=1, help="A trial: end each stage after this many train steps."),
]
PluginDirOption = Annotated[
    Path | None,
    typer.Option(
        "--plugin-dir",
        help="Directory of Python files with workflows, rewards, advantages, losses.",
    ),
]


def run(
    config: ConfigOption,
    dry_run: DryRunOption = False,
    max_steps: MaxStepsOption = None,
    plugin_dir: PluginDirOption = None,
) -> None:
    """Run an experiment; started again on the same directory, it goes on where it stopped."""
    if plugin_dir is not None:
        os.environ[PLUGIN_DIRS] = str(plugin_dir.resolve())
    prepared = prepare(config, max_steps)
    if dry_run:
        describe(prepared)
        return
    if (finished := read_finished(prepared.plan.job_path)) is not None and prepared.resumes:
        print(f"{prepared.plan.label} is finished; another `name` starts another run")
        conclude(finished, prepared.plan)
        return
    check_gpus(prepared.plan)
    check_hub_models(prepared.plan)
    _announce(prepared)
    execute(prepared, _again(config, max_steps, plugin_dir))


def _again(config: Path, max_steps: int | None, plugin_dir: Path | None) -> str:
    """The command that goes on with this run."""
    program = sys.argv[0] if Path(sys.argv[0]).name == PROGRAM else PROGRAM
    parts = [program, "run", "--config", str(config)]
    if max_steps is not None:
        parts += ["--max-steps", str(max_steps)]
    if plugin_dir is not None:
        parts += ["--plugin-dir", str(plugin_dir)]
    return shlex.join(parts)


def execute(prepared: Prepared, again: str) -> None:
    """Run with live progress and print what came of it; `again` is the command that resumes it."""
    follow(Run(plan=prepared.plan, reporter=make_reporter(prepared.plan.label)), again)


def follow(run: Run, again: str) -> None:
    """The same for a run that is made."""
    reporter = run.reporter
    try:
        summary = asyncio.run(run.execute())
    except Interrupted:
        reporter.close()
        print("stopped in order; go on with:")
        print(f"  {again}")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    finally:
        reporter.close()
    conclude(summary, run.plan)


def _announce(prepared: Prepared) -> None:
    for note in prepared.notes:
        print(note)
    verb = "resuming" if prepared.resumes else "starting"
    print(f"{verb} {prepared.plan.label} in {prepared.plan.job_dir}")


def conclude(summary: RunSummary, plan: ExperimentPlan) -> None:
    """Print the results and where they lie."""
    job = plan.job_path
    print()
    for title, done in (
        ("first", summary.first_evaluation),
        ("best", summary.best_evaluation),
        ("final", summary.final_evaluation),
    ):
        if done is not None:
            print(f"{title:6} evaluation  {_evaluation(done)}")
    print(
        f"{summary.steps} train steps on {summary.experiences:,} experiences "
        f"({summary.tokens:,} tokens) in {summary.seconds['total']:.0f} s"
    )
    print(f"summary  {job / 'summary.json'}")
    print(f"curves   {job / 'curves.png'}")


def _evaluation(done: EvaluationSummary) -> str:
    figures = "  ".join(
        f"{name} {value.mean:.3f} ± {value.standard_error:.3f} (n={value.n})"
        for name, value in sorted(done.metrics.items())
    )
    return f"{done.stage} version {done.version} on {done.taskset}: {figures}"
