"""`trinity retrain`: trains again on the batches that a run has stored."""

import shlex
from typing import Annotated

import typer

from trinity.cli.experiment import follow_run, print_results
from trinity.cli.overrides import FileArgument, FileOption, single_file
from trinity.cli.run import AdoptedOption, PluginDirOption, plugin_words, use_plugins
from trinity.config.checks.runtime import check_inputs
from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.launch.machine import check_gpus
from trinity.run.launch.resume import has_run
from trinity.run.launch.retrain import (
    RetrainSource,
    RetrainSteps,
    retraining_plan,
    without_explorer,
)
from trinity.run.launch.run import LocalRun
from trinity.run.local.addresses import stack_directory_of
from trinity.run.progress.reporter import make_reporter
from trinity.run.progress.summary import read_finished


def retrain(
    steps: Annotated[
        str, typer.Option("--steps", help="Train steps FROM..TO, as 1..8.", show_default=False)
    ],
    file: FileArgument = None,
    config: FileOption = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="The stage; without it the last.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the result's directory.")
    ] = None,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
) -> None:
    """Train again on the batches that a run has stored, without an explorer.

    Uses the same rows in the same order. The same settings, hardware and number of ranks give the
    same weights, which is checked and reported. Begins with the stage's starting weights, or with
    the checkpoint before the first step. The run itself is not changed.
    """
    path = single_file([path for path in (config, file) if path is not None], "trinity retrain")
    use_plugins(plugin_dir, adopted)
    plan = plan_experiment(load_config(path))
    check_inputs(plan)
    made = retraining_plan(plan, stage=stage, steps=parse_steps(steps), name=name)
    if (finished := read_finished(made.job_path)) is not None and has_run(made.job_path):
        print(f"{made.label} is finished; another --name trains again")
        print_results(finished, made)
        return
    check_gpus(made)
    print(f"training the batches of steps {steps} again, in {made.job_dir}")
    run = LocalRun(
        plan=made,
        reporter=make_reporter(made.label),
        home=stack_directory_of(plan.job_path),
        services=without_explorer,
        complete=RetrainSource(plan=plan).complete_plan,
    )
    again = ["trinity", "retrain", "--config", str(path), "--steps", steps]
    for option, value in (("--stage", stage), ("--name", name)):
        again += [option, str(value)] if value else []
    again += plugin_words(plugin_dir, adopted)
    follow_run(run, shlex.join(again))


def parse_steps(text: str) -> RetrainSteps:
    """Parses FROM..TO; raises UserError for any other text."""
    first, dots, last = text.partition("..")
    if not (dots and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise UserError(f"--steps {text!r}: give the first and the last train step, as 1..8")
    return RetrainSteps(first=int(first), last=int(last))
