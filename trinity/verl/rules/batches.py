"""Converts batch sizes, counts of steps and learning-rate schedules."""

from trinity.verl.rules.placement import convert_async, is_fully_async, versions_apart
from trinity.verl.settings import VerlSetting
from trinity.verl.shell.variables import UNKNOWN
from trinity.verl.values import as_list, as_scheduler
from trinity.verl.work import ACTOR, Conversion

MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
TRAIN = "data.train_batch_size"
NEVER = 1_000_000
"""A number of steps that no run reaches."""

OPTIMIZER = "algorithm.optimizer"
CRITIC = "trainer.critic.optimizer"
OLD_SFT = "fsdp_sft_trainer"
_STEP_COUNTS_OF_SCHEDULES = ("lr_warmup_steps", "lr_wsd_decay_steps")
_PARTS = ((f"{ACTOR}.optim", OPTIMIZER), ("critic.optim", CRITIC))
STEP_COUNTS = {
    "trainer.critic_warmup": "trainer.critic_warmup",
    **{
        f"{verl}.{name}": f"{ours}.{name}"
        for verl, ours in _PARTS
        for name in _STEP_COUNTS_OF_SCHEDULES
    },
}
"""veRL's keys that count its steps, each with ours."""
_KINDS = ("lr_scheduler_type", "warmup_style", "lr_decay_style")


def convert_batches(work: Conversion) -> None:
    """Converts the sizes of `buffer`, `synchronizer` and the intervals of `explorer`."""
    tasks, mini = work.integer(TRAIN, 1024), work.integer(MINI, 256)
    rollouts = work.integer("actor_rollout_ref.rollout.n", 1)
    if is_fully_async(work):
        tasks = mini * versions_apart(work)
    batch = min(tasks, mini)
    interval = max(tasks // batch, 1)
    if tasks % batch:
        work.report.advice.append(
            f"{TRAIN}={tasks} is not a multiple of {MINI}={mini}: here {interval} batches of "
            f"{batch} tasks lie between two versions of the weights"
        )
    source = work.origin(MINI, mini) if batch == mini else work.origin(TRAIN, tasks)
    _put_total_steps(work, interval)
    work.put("buffer.batch_size", batch, source, "tasks of one train step")
    n_key = "actor_rollout_ref.rollout.n"
    work.put("buffer.train_batch_size", batch * rollouts, f"{batch} * {rollouts} ({n_key})")
    _put_synchronizer(work, tasks, batch, interval)
    convert_async(work, batch, interval)
    _put_intervals(work, interval)
    _put_passes(work, interval)
    put_min_lr(work, f"{ACTOR}.optim")
    _report_orders(work)
    _report_critics_batch(work, mini)
    _report_ends(work)


def _report_orders(work: Conversion) -> None:
    """Reports the sizes and orders that have their effect without a key."""
    why = "refills are drawn as they are needed (`buffer.max_refill_rounds`)"
    work.report_not_needed("data.gen_batch_size", why)
    why = "the order of rows in a pass does not matter"
    work.report_not_needed("actor_rollout_ref.actor.shuffle", why)


def _report_critics_batch(work: Conversion, mini: int) -> None:
    """Reports the critic's mini-batch; it matters only if it differs from the actor's."""
    critic = work.settings.take("critic.ppo_mini_batch_size") if work.has_critic else None
    if critic is not None and critic.value == mini:
        work.report.not_needed.append((critic, f"it is {MINI}"))
    elif critic is not None:
        work.report.missing.append((critic, "the critic trains on the actor's batches"))


def _report_ends(work: Conversion) -> None:
    """Reports the ends of schedules; they do not matter if the rate is constant."""
    styles = [work.settings.peek(f"{ACTOR}.optim.{name}") for name in _KINDS]
    if any(style not in (None, "constant") for style in styles):
        return
    for name in ("total_training_steps", "lr_decay_steps"):
        why = "the learning rate stays as it is"
        work.report_not_needed(f"{ACTOR}.optim.{name}", why)


def _put_total_steps(work: Conversion, interval: int) -> None:
    key, epochs = "trainer.total_training_steps", "trainer.total_epochs"
    steps = work.settings.take(key)
    if steps is None or steps.value is None or steps.value == -1:
        work.copy(epochs, "buffer.total_epochs", 30)
        return
    if steps.value == UNKNOWN:
        work.report.missing.append((steps, f"give {key}=<number> behind the script"))
        return
    count = work.integer(key, 0) * interval
    note = _in_steps(count // interval, interval)
    work.put("buffer.total_steps", count, steps, note)
    work.put("trainer.total_steps", count, steps, note)
    work.report_not_needed(epochs, f"`{key}` decides")


def _put_synchronizer(work: Conversion, tasks: int, batch: int, interval: int) -> None:
    asked = work.choices.sync_offset
    usual = 0 if work.draft.get("mode") == "colocate" else 1
    offset = usual if asked is None else asked
    work.put("synchronizer.sync_style", "fixed", "versions at fixed steps, as in veRL")
    work.put(
        "synchronizer.sync_offset",
        offset,
        "veRL's own order: rollout waits for each version"
        if offset == 0
        else "rollout goes ahead while training works; --sync-offset 0 for veRL's strict order",
    )
    work.put("synchronizer.sync_interval", interval, f"{tasks} / {batch} ({TRAIN} / batch_size)")
    work.put("synchronizer.sync_timeout", 1200, "seconds that either side waits for the other")


def _put_intervals(work: Conversion, interval: int) -> None:
    """Converts the steps between evaluations and between checkpoints, as the guide counts them.

    Like the guide, it writes veRL's number, though a veRL step is `sync_interval` of our steps: a
    script and the guide's file for the same job then agree. The fully-async policy, which the guide
    does not mention, counts versions.
    """
    factor = interval if is_fully_async(work) else 1
    older = "rollout.test_freq"  # of the fully-async policy, which counts versions by it
    evaluation = older if work.settings.has(older) else "trainer.test_freq"
    if evaluation == older:
        work.report_not_needed("trainer.test_freq", f"`{older}` decides")
    for key, ours, never in (
        (evaluation, "explorer.eval_interval", NEVER * interval),
        ("trainer.save_freq", "trainer.save_interval", 0),
    ):
        setting = work.settings.take(key)
        freq = setting.value if setting is not None else -1
        if setting is not None and setting.value == UNKNOWN:
            work.report.missing.append((setting, f"give {key}=<number> behind the script"))
        elif setting is None or not isinstance(freq, int) or freq <= 0:
            note = "never" if never else "the end is always saved"
            work.put(ours, never, work.origin(key, -1), note)
        else:
            told = _in_steps if factor > 1 else _as_guide
            work.put(ours, freq * factor, setting, told(freq, interval))


def _in_steps(count: int, interval: int) -> str:
    return f"{count} veRL steps of {interval} steps each" if interval > 1 else ""


def _as_guide(count: int, interval: int) -> str:
    if interval == 1:
        return ""
    return f"our steps, as in the guide; {count * interval} would be {count} veRL steps"


def put_min_lr(work: Conversion, section: str) -> None:
    """Converts Megatron's smallest learning rate to a share of the largest."""
    setting, rate = work.settings.take(f"{section}.min_lr"), work.settings.peek(f"{section}.lr")
    if setting is None or setting.value is None:
        return
    if isinstance(setting.value, int | float) and isinstance(rate, int | float) and rate:
        ratio = min(setting.value / rate, 1.0)
        work.put(f"{OPTIMIZER}.min_lr_ratio", ratio, setting, f"{setting.value} / {rate}")
    else:
        work.report.missing.append((setting, f"give it over `lr`: `{OPTIMIZER}.min_lr_ratio`"))


def put_first_rate(work: Conversion, verl: str, ours: str) -> None:
    """Converts where a warm-up begins, as a share of the rate that it goes up to."""
    setting, rate = work.settings.take(f"{verl}.init_lr_ratio"), work.settings.peek(f"{verl}.lr")
    if setting is None or setting.value is None:
        return
    if isinstance(setting.value, int | float) and isinstance(rate, int | float):
        first = setting.value * rate
        work.put(f"{ours}.lr_warmup_init", first, setting, f"{setting.value} * {rate}")
    elif setting.value:
        work.report.missing.append((setting, f"give the rate itself: `{ours}.lr_warmup_init`"))


def _put_passes(work: Conversion, interval: int) -> None:
    """Converts passes; veRL's critic takes the actor's number by default."""
    actor, critic = "actor_rollout_ref.actor.ppo_epochs", "critic.ppo_epochs"
    passes = work.settings.peek(actor)
    if passes is None or passes == 1:
        return
    if work.has_critic and work.settings.peek(critic) is None:
        work.put("trainer.critic.ppo_epochs", passes, f"veRL's default, as in {actor}")
    if interval > 1:
        work.report.advice.append(
            f"{actor}={passes} passes over all {interval} mini-batches in turn in veRL, here over "
            "each mini-batch before the next: the same number of steps, in another order"
        )


def convert_schedules(work: Conversion) -> None:
    """Converts both optimizers, once the number of our steps per veRL step is known."""
    interval = work.draft.get("synchronizer.sync_interval")
    factor = interval if isinstance(interval, int) else 1
    for verl, ours in STEP_COUNTS.items():
        if work.has_critic or not verl.startswith("critic."):
            _put_steps(work, verl, ours, factor)
    for verl, ours in _PARTS[: 1 + work.has_critic]:
        _put_end_of_cosine(work, verl, ours)
        put_first_rate(work, verl, ours)


def _put_steps(work: Conversion, verl: str, ours: str, factor: int) -> None:
    steps = work.settings.peek(verl)
    if steps == 0 and verl.endswith(".lr_warmup_steps"):
        setting = work.settings.take(verl)
        assert setting is not None
        work.put(ours, -1, setting, "veRL takes 0 for the ratio, too")
    if factor > 1 and isinstance(steps, int) and steps > 0:
        setting = work.settings.take(verl)
        assert setting is not None
        work.put(ours, steps * factor, setting, f"{steps} veRL steps of {factor} steps each")


def _put_end_of_cosine(work: Conversion, verl: str, ours: str) -> None:
    """Writes veRL's end of a cosine at 0; here it ends a little above 0 by default."""
    kinds = [str(work.settings.peek(f"{verl}.{name}") or "").lower() for name in _KINDS]
    if "cosine" in kinds and work.settings.peek(f"{verl}.min_lr_ratio") is None:
        work.put(f"{ours}.min_lr_ratio", 0.0, f"veRL's default {verl}.min_lr_ratio=0.0")


def convert_supervised_schedule(work: Conversion) -> None:
    """Converts the schedule of fine-tuning; veRL's two trainers have different defaults."""
    is_old = work.settings.module.endswith(OLD_SFT)
    work.copy("optim.lr", f"{OPTIMIZER}.lr", 1e-5 if is_old else 1e-3)
    put_min_lr(work, "optim")
    put_first_rate(work, "optim", OPTIMIZER)
    if not is_old:
        _put_end_of_cosine(work, "optim", OPTIMIZER)
        return
    if (ratio := work.settings.take("optim.warmup_steps_ratio")) is not None:
        work.settings.put(
            VerlSetting(key="optim.lr_warmup_steps_ratio", value=ratio.value, where=ratio.where)
        )
    betas = work.settings.take("optim.betas")
    source = betas or "veRL's default of optim.betas"
    work.put(f"{OPTIMIZER}.betas", as_list(betas.value) if betas else [0.9, 0.95], source)
    work.copy("optim.lr_warmup_steps_ratio", f"{OPTIMIZER}.lr_warmup_steps_ratio", 0.1)
    kind = work.settings.value("optim.lr_scheduler", "cosine")
    origin = work.origin("optim.lr_scheduler", kind)
    work.put(f"{OPTIMIZER}.lr_scheduler_type", as_scheduler(kind), origin)
    work.put(f"{OPTIMIZER}.min_lr_ratio", 0.0, "veRL's schedules end at 0")
