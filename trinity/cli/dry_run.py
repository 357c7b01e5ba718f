"""`trinity run --dry-run`: shows what would be done, after all checks."""

from collections.abc import Iterator

from trinity.cli.counting import counted
from trinity.config.plan.model import to_fetch
from trinity.config.plan.parts import ResolvedExperienceBuffer, ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.task_storage import without_password
from trinity.launch.prepare import Prepared


def describe(prepared: Prepared) -> None:
    """Prints the plan; nothing is started or written."""
    plan = prepared.plan
    for note in prepared.notes:
        print(note)
    verb = "resume" if prepared.resumes else "start"
    print(f"would {verb} {plan.label} (tenant {plan.tenant}, seed {plan.seed})")
    print(f"  in {plan.job_dir}")
    for stage in plan.stages:
        for line in stage_lines(stage):
            print(line)
    unseen = "; what is to be fetched from the hub is not checked" if to_fetch(plan) else ""
    print(f"the configuration, the model and the data are in order{unseen}; nothing was started")


def stage_lines(stage: StagePlan) -> list[str]:
    """Describes what a stage would do."""
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
        f"  rollout        {counted(rollout.engine_num, 'engine')}, {rollout.engine_type}, "
        f"{rollout.dtype}",
        f"  synchronizing  {sync.sync_method}, {sync.sync_style}, every "
        f"{counted(sync.sync_interval, 'step')}, offset {sync.sync_offset}",
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
    yield f"  listens on     {explorer.listen_address}:{explorer.proxy_port}"
    yield f"  newer weights  are looked for every {explorer.service_status_check_interval} s"


def _training_lines(stage: StagePlan) -> list[str]:
    if stage.mode == "explore":
        steps = stage.total_explore_steps or "as many as the tasks give"
        return [f"  explore steps  {steps}; experiences are kept, nothing is trained"]
    if stage.mode == "bench":
        which = "the newest" if stage.config.explorer.bench_on_latest_checkpoint else "every"
        return [f"  evaluates      {which} checkpoint of the run; nothing is trained"]
    steps = stage.total_train_steps or "as many as the data gives"
    return [
        f"  train steps    {steps}, {stage.train_batch_size} rows each",
        f"  learning rate  {stage.learning_rate(1, stage.total_train_steps or 1):g} at step 1",
        f"  trainer        {counted(stage.trainer_rank_num, 'rank')}, {stage.config.trainer.dtype}",
    ]


def _evaluation_lines(stage: StagePlan) -> Iterator[str]:
    every = f", every {stage.eval_interval} steps" if stage.mode == "both" else ""
    for evaluation in stage.eval_tasksets:
        yield f"  evaluation     {_place(evaluation)}{every}"


def _data(stage: StagePlan) -> str:
    if (stored := stage.stored_rollouts) is not None:
        if stored.run and not stored.stage:
            return f"the experiences that run {stored.run} has stored"
        return f"the experiences that {stored.words} has stored"
    return _place(stage.experience_buffer)


def _task_lines(task: ResolvedTaskset) -> list[str]:
    return [
        f"  tasks          {_place(task)}, {task.selector.selector_type}",
        f"  workflow       {task.workflow}, reward {task.reward or 'of the workflow'}",
    ]


def _place(rows: ResolvedTaskset | ResolvedExperienceBuffer) -> str:
    """The place of rows, without the password that a database's address may hold."""
    if rows.storage_type == "sql" and rows.path is not None:
        return f"table {rows.table} of {without_password(rows.path)}"
    return rows.path or f"{rows.name} ({rows.storage_type})"


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
    ):
        if name != "none":
            parts.append(f"{word} {name}")
    return ", ".join(parts)
