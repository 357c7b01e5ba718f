"""`trinity run --dry-run`: what would be done, after everything that can be checked was."""

from trinity.config.plan import ResolvedExperienceBuffer, ResolvedTaskset, StagePlan
from trinity.config.taskset_storage import without_password
from trinity.launch.prepare import Prepared


def describe(prepared: Prepared) -> None:
    """Print the plan; nothing is started or written."""
    plan = prepared.plan
    for note in prepared.notes:
        print(note)
    verb = "resume" if prepared.resumes else "start"
    print(f"would {verb} {plan.label} (tenant {plan.tenant}, seed {plan.seed})")
    print(f"  in {plan.job_dir}")
    for stage in plan.stages:
        for line in stage_lines(stage):
            print(line)
    print("the configuration, the model and the data are in order; nothing was started")


def stage_lines(stage: StagePlan) -> list[str]:
    """What a stage would do."""
    algorithm = stage.algorithm
    steps = stage.total_train_steps or "as many as the data gives"
    start = stage.model_path if stage.index == 0 else "the weights of the stage before"
    lines = [
        f"stage {stage.index + 1}: {stage.name} (mode {stage.mode}, {algorithm.algorithm_type})",
        f"  starts from    {start}",
        f"  algorithm      {_parts(stage)}",
        f"  train steps    {steps}, {stage.train_batch_size} rows each",
        f"  learning rate  {stage.learning_rate(1, stage.total_train_steps or 1):g} at step 1",
        f"  trainer        {stage.trainer_rank_num} rank(s), {stage.config.trainer.dtype}",
    ]
    if not stage.tasksets:
        return [*lines, f"  data           {_place(stage.experience_buffer)}"]
    rollout = stage.config.explorer.rollout_model
    sync = stage.config.synchronizer
    lines += [
        *(line for task in stage.tasksets for line in _task_lines(task)),
        f"  a step         {stage.config.buffer.batch_size} tasks, "
        f"{algorithm.repeat_times} rollouts each",
        f"  rollout        1 engine {rollout.engine_type}, {rollout.dtype}",
        f"  synchronizing  {sync.sync_method}, every {sync.sync_interval} step(s), "
        f"offset {sync.sync_offset}",
    ]
    if (experts := stage.expert_buffer) is not None:
        share = f"{stage.num_expert_rows} of the {stage.train_batch_size} rows of a step"
        lines.append(f"  expert rows    {_place(experts)}, {share}")
    for evaluation in stage.eval_tasksets:
        every = stage.eval_interval
        lines.append(f"  evaluation     {_place(evaluation)}, every {every} steps")
    return lines


def _task_lines(task: ResolvedTaskset) -> list[str]:
    return [
        f"  tasks          {_place(task)}, {task.selector.selector_type}",
        f"  workflow       {task.workflow}, reward {task.reward or 'of the workflow'}",
    ]


def _place(rows: ResolvedTaskset | ResolvedExperienceBuffer) -> str:
    """Without the password that a database's address may hold."""
    if rows.storage_type == "sql" and rows.path is not None:
        return f"table {rows.table} of {without_password(rows.path)}"
    return rows.path or f"{rows.name} ({rows.storage_type})"


def _parts(stage: StagePlan) -> str:
    """What makes the gradient, with whoever makes the advantages."""
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
