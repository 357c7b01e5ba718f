"""Runs a prepared configuration on this machine and prints its results."""

import asyncio
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from trinity.cli.dry_run import describe
from trinity.cli.notices import WORDS
from trinity.cli.overrides import parse_overrides
from trinity.cli.results import result_lines
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.launch.benching import BenchSource
from trinity.launch.gpus import check_gpus
from trinity.launch.hub import check_hub
from trinity.launch.ordered_stop import Interrupted
from trinity.launch.prepare import Prepared, prepare
from trinity.launch.retraining import without_explorer
from trinity.launch.run import Run
from trinity.launch.serving import check_reach
from trinity.launch.source_runs import with_source_runs
from trinity.launch.stored_run import StoredRun
from trinity.local.home import home_of
from trinity.local.job_lock import refuse_second
from trinity.progress.reporter import make_reporter
from trinity.progress.summary import RunSummary, read_finished

INTERRUPTED_EXIT_CODE = 130
PROGRAM = "trinity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Options of `trinity run`."""

    config: Path
    overrides: tuple[str, ...]
    dry_run: bool
    strict: bool
    max_steps: int | None
    plugin_dir: Path | None
    secure: bool = False

    @property
    def again(self) -> str:
        """The command that resumes this run."""
        program = sys.argv[0] if Path(sys.argv[0]).name == PROGRAM else PROGRAM
        parts = [program, "run", "--config", str(self.config)]
        if self.max_steps is not None:
            parts += ["--max-steps", str(self.max_steps)]
        if self.plugin_dir is not None:
            parts += ["--plugin-dir", str(self.plugin_dir)]
        if self.secure:
            parts += ["--secure"]
        return shlex.join([*parts, *self.overrides])


def run_experiment(wish: Wish) -> None:
    """Runs the experiment, or describes it; the results of a finished one are shown again."""
    prepared = prepare(wish.config, wish.max_steps, parse_overrides(wish.overrides))
    for notice in prepared.notices:
        print(f"{WORDS[notice.status]} {notice.place}: {notice}")
    if wish.strict and prepared.notices:
        raise UserError("`--strict` rejects a configuration with keys that do not act as written")
    check_reach(prepared.plan, secure=wish.secure)
    if wish.dry_run:
        check_hub(prepared.plan, must_answer=False)
        describe(prepared)
        return
    if (finished := read_finished(prepared.plan.job_path)) is not None and prepared.resumes:
        print(f"{prepared.plan.label} is finished; another `name` starts another run")
        conclude(finished, prepared.plan)
        return
    check_gpus(prepared.plan)
    check_hub(prepared.plan, must_answer=True)
    refuse_second(_home(prepared))
    _announce(prepared)
    execute(prepared, wish.again, secure=wish.secure)


def execute(prepared: Prepared, again: str, *, secure: bool = False) -> None:
    """Runs with live progress and prints the results; `again` is the command that resumes it."""
    reporter = make_reporter(prepared.plan.label)
    run = Run(plan=prepared.plan, reporter=reporter, secure=secure, home=_home(prepared))
    if prepared.benched is not None:
        run.complete = BenchSource(run=StoredRun(plan=prepared.benched)).complete
    elif prepared.sources is not None:
        run.complete = with_source_runs
        if not any(stage.needs_rollout for stage in prepared.plan.stages):
            run.services = without_explorer
    follow(run, again)


def _home(prepared: Prepared) -> Path:
    """The directory of the stack: the plan's own, or that of the run whose database is used."""
    if prepared.benched is not None:
        return home_of(prepared.benched.job_path)
    if prepared.sources is not None:
        return prepared.sources.home
    return prepared.plan.job_path


def follow(run: Run, again: str) -> None:
    """Follows a run to its end and prints the results; `again` is the command that resumes it."""
    reporter = run.reporter
    try:
        summary = asyncio.run(run.execute())
    except Interrupted:
        reporter.close()
        print("stopped gracefully; resume with:")
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
    """Prints the results and the paths of their files."""
    job = plan.job_path
    print()
    for line in result_lines(summary):
        print(line)
    print(f"summary  {job / 'summary.json'}")
    print(f"curves   {job / 'curves.png'}")
