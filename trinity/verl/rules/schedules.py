"""Converts learning rates and counts of steps; one step of veRL's may be several of ours."""

from trinity.verl.rules.algorithm import ACTOR
from trinity.verl.values import as_list, as_scheduler
from trinity.verl.work import Work

OPTIMIZER = "algorithm.optimizer"
CRITIC = "trainer.critic.optimizer"
OLD_SFT = "fsdp_sft_trainer"
_COUNTED = ("lr_warmup_steps", "lr_wsd_decay_steps")
_PARTS = ((f"{ACTOR}.optim", OPTIMIZER), ("critic.optim", CRITIC))
COUNTED = {
    "trainer.critic_warmup": "trainer.critic_warmup",
    **{f"{verl}.{name}": f"{ours}.{name}" for verl, ours in _PARTS for name in _COUNTED},
}
"""veRL's keys that count its steps, each with ours."""
_KINDS = ("lr_scheduler_type", "warmup_style", "lr_decay_style")


def convert_schedules(work: Work) -> None:
    """Converts both optimizers, once the number of our steps per veRL step is known."""
    interval = work.draft.get("synchronizer.sync_interval")
    factor = interval if isinstance(interval, int) else 1
    for verl, ours in COUNTED.items():
        if work.has_critic or not verl.startswith("critic."):
            _put_steps(work, verl, ours, factor)
    for verl, ours in _PARTS[: 1 + work.has_critic]:
        _put_end_of_cosine(work, verl, ours)


def _put_steps(work: Work, verl: str, ours: str, factor: int) -> None:
    steps = work.settings.peek(verl)
    if factor > 1 and isinstance(steps, int) and steps > 0:
        setting = work.settings.take(verl)
        assert setting is not None
        work.put(ours, steps * factor, setting, f"{steps} of veRL's steps, {factor} of ours each")


def _put_end_of_cosine(work: Work, verl: str, ours: str) -> None:
    """Writes veRL's end of a cosine at 0; here it ends a little above 0 by default."""
    kinds = [str(work.settings.peek(f"{verl}.{name}") or "").lower() for name in _KINDS]
    if "cosine" in kinds and work.settings.peek(f"{verl}.min_lr_ratio") is None:
        work.put(f"{ours}.min_lr_ratio", 0.0, f"veRL's default {verl}.min_lr_ratio=0.0")


def convert_supervised_schedule(work: Work) -> None:
    """Converts the schedule of fine-tuning; veRL's two trainers have different defaults."""
    is_old = work.settings.module.endswith(OLD_SFT)
    work.carry("optim.lr", f"{OPTIMIZER}.lr", 1e-5 if is_old else 1e-3)
    if not is_old:
        _put_end_of_cosine(work, "optim", OPTIMIZER)
        return
    betas = work.settings.take("optim.betas")
    source = betas or "veRL's default of optim.betas"
    work.put(f"{OPTIMIZER}.betas", as_list(betas.value) if betas else [0.9, 0.95], source)
    work.carry("optim.lr_warmup_steps_ratio", f"{OPTIMIZER}.lr_warmup_steps_ratio", 0.1)
    kind = work.settings.value("optim.lr_scheduler", "cosine")
    origin = work.origin("optim.lr_scheduler", kind)
    work.put(f"{OPTIMIZER}.lr_scheduler_type", as_scheduler(kind), origin)
    work.put(f"{OPTIMIZER}.min_lr_ratio", 0.0, "veRL's schedules end at 0")
