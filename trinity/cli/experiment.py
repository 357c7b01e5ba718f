"""Describes, starts and follows the run of `trinity run`."""

import asyncio
import contextlib
import json
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from pydantic import JsonValue

from trinity.cli.overrides import parse_overrides
from trinity.config.checks.packages import missing_packages
from trinity.config.plan.model import missing_from_cache
from trinity.config.plan.parts import ResolvedExperienceBuffer, ResolvedTaskset
from trinity.config.plan.rollouts_ahead import largest_lag
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.task_storage import without_password
from trinity.errors import UserError
from trinity.run.deploy.submission import refuse_local_modes
from trinity.run.launch.machine import check_disk, check_gpus, what_is_missing
from trinity.run.launch.modes import BenchSource, check_reach, started_data_juicer
from trinity.run.launch.prepare import PreparedRun, check_hub, prepare_run
from trinity.run.launch.retrain import without_explorer
from trinity.run.launch.run import LocalRun, RunInterrupted
from trinity.run.launch.spread import SpreadRun
from trinity.run.launch.stored_runs import StoredRun, with_source_runs
from trinity.run.local.addresses import stack_directory_of
from trinity.run.local.data_juicer import data_juicer_python, with_data_juicer
from trinity.run.local.reaper import refuse_if_locked
from trinity.run.output import STATUS_LABELS, pluralize
from trinity.run.progress.reporter import make_reporter
from trinity.run.progress.summary import RunSummary, read_finished
from trinity.run.runs import result_lines
from trinity.runtime.host_port import join_address
from trinity.weights.stored import (
    BEST_FOLDER,
    StoredModel,
    best_model,
    model_lines,
    newest_model,
)

INTERRUPTED_EXIT_CODE = 130
PROGRAM = "trinity"
CHAT_TEMPLATE = "chat_template.jinja"


def describe(prepared: PreparedRun) -> None:
    """Prints the plan without starting or writing anything."""
    plan = prepared.plan
    for note in prepared.notes:
        print(note)
    verb = "resume" if prepared.resumes else "start"
    print(f"would {verb} {plan.label} (tenant {plan.tenant}, seed {plan.seed})")
    print(f"  in {plan.job_dir}")
    for stage in plan.stages:
        for line in stage_lines(stage):
            print(line)
    for missing in what_is_missing(plan):
        print(f"not here now: {missing}")
    unseen = (
        "; what is to be fetched from the hub is not checked" if missing_from_cache(plan) else ""
    )
    print(f"the configuration, the model and the data are in order{unseen}; nothing was started")


def stage_lines(stage: StagePlan) -> list[str]:
    """Describes the work of a stage."""
    if stage.mode == "serve":
        return [*_serving_lines(stage)]
    algorithm = stage.algorithm
    start = stage.model_path if stage.index == 0 else "the weights of the stage before"
    lines = [
        f"stage {stage.index + 1}: {stage.name} (mode {stage.mode}, {algorithm.algorithm_type})",
        f"  starts from    {start}",
        f"  algorithm      {_parts(stage)}",
        *_training_lines(stage),
    ]
    if stage.mode == "train":
        return [*lines, f"  data           {_data(stage)}"]
    if stage.mode == "bench":
        return [*lines, *_evaluation_lines(stage)]
    rollout = stage.config.explorer.rollout_model
    sync = stage.config.synchronizer
    lines += [
        *(line for task in stage.tasksets for line in _task_lines(task)),
        f"  a step         {stage.config.buffer.batch_size} tasks, "
        f"{algorithm.repeat_times} rollouts each",
        f"  rollout        {pluralize(rollout.engine_num, 'engine')}, {rollout.engine_type}, "
        f"{rollout.dtype}",
        f"  synchronizing  {sync.sync_method}, {sync.sync_style}, every "
        f"{pluralize(sync.sync_interval, 'step')}, offset {sync.sync_offset}{_lag(stage)}",
    ]
    if (experts := stage.expert_buffer) is not None:
        share = f"{stage.num_expert_rows} of the {stage.train_batch_size} rows of a step"
        lines.append(f"  expert rows    {_place(experts)}, {share}")
    return [*lines, *_evaluation_lines(stage)]


def _serving_lines(stage: StagePlan) -> Iterator[str]:
    explorer = stage.config.explorer
    rollout = explorer.rollout_model
    run = f"the newest weights of the run in {stage.served.job_dir}, or " if stage.served else ""
    yield f"stage {stage.index + 1}: {stage.name} (mode serve)"
    yield f"  serves         {run}{stage.model_path}"
    yield f"  engines        {rollout.engine_num} {rollout.engine_type}, {rollout.dtype}"
    yield f"  listens on     {join_address(explorer.listen_address, explorer.proxy_port)}"
    yield f"  newer weights  are looked for every {explorer.service_status_check_interval} s"


def _rows_of_a_step(stage: StagePlan) -> str:
    if stage.trains_explore_steps:
        return f"an explore step each, in updates of at most {stage.train_batch_size} rows"
    return f"{stage.train_batch_size} rows each"


def _training_lines(stage: StagePlan) -> list[str]:
    if stage.mode == "explore":
        steps = stage.total_explore_steps or "as many as the tasks give"
        return [f"  explore steps  {steps}; experiences are kept, nothing is trained"]
    if stage.mode == "bench" and not stage.needs_training:
        return ["  evaluates      the model as it is; nothing is trained"]
    if stage.mode == "bench":
        which = "the newest" if stage.config.explorer.bench_on_latest_checkpoint else "every"
        return [f"  evaluates      {which} checkpoint of the run; nothing is trained"]
    steps = stage.total_train_steps or "as many as the data gives"
    ranks = pluralize(stage.trainer_rank_num, "rank")
    return [
        f"  train steps    {steps}, {_rows_of_a_step(stage)}",
        f"  learning rate  {stage.learning_rate(1, stage.total_train_steps or 1):g} at step 1",
        f"  trainer        {ranks}, {stage.config.trainer.dtype}",
    ]


def _evaluation_lines(stage: StagePlan) -> Iterator[str]:
    every = f", every {stage.eval_interval} steps" if stage.mode == "both" else ""
    for evaluation in stage.eval_tasksets:
        yield f"  evaluation     {_place(evaluation)}{every}"


def _data(stage: StagePlan) -> str:
    if (stored := stage.stored_rollouts) is not None:
        if stored.run and not stored.stage:
            return f"the experiences that run {stored.run} has stored"
        return f"the experiences that {stored.description} has stored"
    return _place(stage.experience_buffer)


def _task_lines(task: ResolvedTaskset) -> list[str]:
    return [
        f"  tasks          {_place(task)}, {task.selector.selector_type}",
        f"  workflow       {task.workflow}, reward {_reward(task)}",
    ]


def _reward(task: ResolvedTaskset) -> str:
    key = task.format.reward_fn_key
    by_row = f"by column `{key}`" if key else ""
    if task.reward is None:
        return by_row or "of the workflow"
    return f"{by_row}, else {task.reward}" if by_row else task.reward


def _place(rows: ResolvedTaskset | ResolvedExperienceBuffer) -> str:
    """The place of rows, without the password that a database's address may hold."""
    if rows.storage_type == "sql" and rows.path is not None:
        return f"table {rows.table} of {without_password(rows.path)}"
    return rows.path or f"{rows.name} ({rows.storage_type})"


def _lag(stage: StagePlan) -> str:
    if not stage.has_dynamic_sync:
        return ""
    return f", rollouts up to {pluralize(largest_lag(stage), 'step')} old"


def _parts(stage: StagePlan) -> str:
    """The parts that make the gradient, with the service that computes the advantages."""
    algorithm = stage.algorithm
    parts = [f"loss {algorithm.policy_loss_fn}"]
    if stage.needs_rollout:
        where = "trainer" if algorithm.advantage_in_trainer else "buffer"
        parts.insert(0, f"advantage {algorithm.advantage_fn} (of the {where})")
    for word, name in (
        ("KL penalty", algorithm.kl_penalty_fn),
        ("KL loss", algorithm.kl_loss_fn),
        ("critic", stage.critic_model_path or "none"),
        ("teacher", stage.teacher_model_path or "none"),
    ):
        if name != "none":
            parts.append(f"{word} {name}")
    return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `trinity run`."""

    config: Path
    overrides: tuple[str, ...]
    dry_run: bool
    strict: bool
    max_steps: int | None
    plugins: tuple[str, ...] = ()
    """The options that name plugins, as words."""
    secure: bool = False
    accept_changes: bool = False
    explorers: int | None = None

    @property
    def accept_command(self) -> str:
        """The command that accepts the changes of the file."""
        return self._command("--accept-changes")

    @property
    def resume_command(self) -> str:
        """The command that resumes this run."""
        return self._command()

    def serve_command(self, label: str, model: StoredModel) -> str:
        """The command that answers OpenAI's clients with the run's best model, or its newest."""
        is_best = model.path.name == BEST_FOLDER
        changed = ("stages", "mode=", *(("name=", "model.model_path=") if is_best else ()))
        words = [word for word in self.overrides if not word.startswith(changed)]
        words = ["stages=[]", "mode=serve", *words]  # in this order: a stage may have its own mode
        if is_best:  # with another name: the run's would give the newest weights
            words += [f"name={label}-{BEST_FOLDER}", f"model.model_path={model.path}"]
        serving = replace(
            self, overrides=tuple(words), max_steps=None if is_best else self.max_steps
        )
        return serving.resume_command

    def _command(self, *further: str) -> str:
        parts = [program(), "run", "--config", str(self.config)]
        if self.max_steps is not None:
            parts += ["--max-steps", str(self.max_steps)]
        parts += self.plugins
        if self.secure:
            parts += ["--secure"]
        if self.explorers is not None:
            parts += ["--explorers", str(self.explorers)]
        return shlex.join([*parts, *further, *self.overrides])


def _print_notices(prepared: PreparedRun, *, strict: bool) -> None:
    for notice in prepared.notices:
        print(f"{STATUS_LABELS[notice.status]} {notice.place}: {notice}")
    if strict and prepared.notices:
        raise UserError("`--strict` rejects a configuration with keys that do not act as written")


def run_experiment(options: RunOptions) -> None:
    """Runs the experiment, or describes it; the results of a finished one are shown again."""
    prepared = prepare_run(
        options.config,
        options.max_steps,
        parse_overrides(options.overrides),
        accepts_changes=options.accept_changes,
        accept_command=options.accept_command,
    )
    _print_notices(prepared, strict=options.strict)
    check_reach(prepared.plan, secure=options.secure)
    if options.dry_run:
        check_hub(prepared.plan, must_answer=False)
        describe(prepared)
        return
    if (finished := _finished(prepared)) is not None:
        print(
            f"{prepared.plan.label} is finished; more steps go on with it, another `name` starts "
            "another run"
        )
        print_results(finished, prepared.plan)
        print_next_steps(prepared.plan, options)
        return
    if missing := list(missing_packages(prepared.plan)):
        raise UserError("\n".join(missing))
    spread = _spread(prepared, options.explorers)
    check_disk(prepared.plan)
    check_hub(prepared.plan, must_answer=True)
    refuse_if_locked(_home(prepared))
    _print_start(prepared)
    execute_run(prepared, options.resume_command, secure=options.secure, spread=spread)
    print_next_steps(prepared.plan, options)


def _spread(prepared: PreparedRun, explorers: int | None) -> SpreadRun | None:
    """Returns where the parts of a run over several nodes are; None for a run on this machine."""
    if explorers is None:
        check_gpus(prepared.plan)
        return None
    refuse_local_modes(prepared.benched or prepared.plan)
    return SpreadRun.over_job(prepared.plan, explorers)


def _finished(prepared: PreparedRun) -> RunSummary | None:
    """Returns the results of a run if it is complete."""
    if not prepared.resumes or (prepared.changed is not None and prepared.changed.is_longer):
        return None
    return read_finished(prepared.plan.job_path)


def execute_run(
    prepared: PreparedRun,
    resume_command: str,
    *,
    secure: bool = False,
    spread: SpreadRun | None = None,
) -> None:
    """Runs with live progress and prints the results; a stopped run shows `resume_command`."""
    reporter = make_reporter(prepared.plan.label)
    run = LocalRun(
        plan=prepared.plan,
        reporter=reporter,
        secure=secure,
        home=_home(prepared),
        spread=spread,
    )
    if prepared.benched is not None:
        run.complete = BenchSource(run=StoredRun(plan=prepared.benched)).complete_plan
    elif prepared.sources is not None:
        run.complete = with_source_runs
        if not any(stage.needs_rollout for stage in prepared.plan.stages):
            run.services = without_explorer
    if (port := started_data_juicer(prepared.plan)) is not None:
        python = data_juicer_python(reporter.print_line)
        run.services = with_data_juicer(run.services, port, python)
    follow_run(run, resume_command)


def _home(prepared: PreparedRun) -> Path:
    """The directory of the stack: the plan's own, or that of the run whose database is used."""
    if prepared.benched is not None:
        return stack_directory_of(prepared.benched.job_path)
    if prepared.sources is not None:
        return prepared.sources.home
    return prepared.plan.job_path


def follow_run(run: LocalRun, resume_command: str) -> None:
    """Follows a run to its end and prints the results; a stopped run shows `resume_command`."""
    reporter = run.reporter
    try:
        summary = asyncio.run(run.run_to_end())
    except (RunInterrupted, KeyboardInterrupt):  # the latter when all is stopped already
        with _without_ctrl_c():
            reporter.close()
            print("stopped gracefully; resume with:")
            print(f"  {resume_command}")
        raise typer.Exit(INTERRUPTED_EXIT_CODE) from None
    finally:
        reporter.close()
    print_results(summary, run.plan)


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Lets a further Ctrl-C not cut the last words short."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print_start(prepared: PreparedRun) -> None:
    for note in prepared.notes:
        print(note)
    verb = "resuming" if prepared.resumes else "starting"
    print(f"{verb} {prepared.plan.label} in {prepared.plan.job_dir}")


def print_next_steps(plan: ExperimentPlan, options: RunOptions) -> None:
    """Prints how to load, serve and inspect the results of a run."""
    directory = plan.job_path
    trained = [stage.name for stage in plan.stages if stage.mode in ("both", "train")]
    models = [found for name in trained if (found := newest_model(directory, name)) is not None]
    if not models:
        return
    model = best_model(directory, models[-1].stage) or models[-1]
    asked: JsonValue = "12+34="
    if (model.path / CHAT_TEMPLATE).exists():  # as it was trained; a plain text would end at once
        asked = [{"role": "user", "content": asked}]
    path, prompt = json.dumps(str(model.path)), json.dumps(asked)
    read = f'pipeline("text-generation", {path})({prompt}, max_new_tokens=16)[0]["generated_text"]'
    load = [sys.executable, "-c", f"from transformers import pipeline; print({read})"]
    print("what next:")
    print(f"  load it   {shlex.join(load)}")
    print(f"  serve it  {options.serve_command(plan.label.rpartition('/')[2], model)}")
    print(f"  see it    {shlex.join([program(), 'studio', str(directory)])}")


def program() -> str:
    """Returns the command as it was called, for commands to show."""
    return sys.argv[0] if Path(sys.argv[0]).name == PROGRAM else PROGRAM


def print_results(summary: RunSummary, plan: ExperimentPlan) -> None:
    """Prints the results and the paths of their files."""
    job = plan.job_path
    print()
    for line in result_lines(summary):
        print(line)
    for line in model_lines(job, [stage.name for stage in plan.stages]):
        print(line)
    print(f"summary       {job / 'summary.json'}")
    print(f"curves        {job / 'curves.png'}")
