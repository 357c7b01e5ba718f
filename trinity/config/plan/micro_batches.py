"""Rows of a micro-batch; None where micro-batches are cut by tokens."""

from trinity.config.plan.arithmetic import PACKED
from trinity.config.plan.stage_plan import StagePlan


def policy_rows(plan: StagePlan) -> int | None:
    """Returns the rows of the policy's training."""
    return _rows(plan, plan.config.trainer.ppo_micro_batch_size_per_gpu)


def inference_rows(plan: StagePlan) -> int | None:
    """Returns the rows of passes of actor and reference that only compute outputs."""
    trainer = plan.config.trainer
    own = trainer.log_prob_micro_batch_size_per_gpu
    return _rows(plan, own or trainer.ppo_micro_batch_size_per_gpu)


def critic_rows(plan: StagePlan) -> int | None:
    """Returns the rows of all passes of the critic."""
    trainer = plan.config.trainer
    own = trainer.critic.ppo_micro_batch_size_per_gpu
    return _rows(plan, own or trainer.ppo_micro_batch_size_per_gpu)


def _rows(plan: StagePlan, configured: int | None) -> int | None:
    """Cuts by rows if the user says so, but not a run that began before that acted."""
    by_rows = not plan.config.trainer.use_dynamic_bsz and plan.arithmetic.version >= PACKED
    return (configured or 1) if by_rows else None
