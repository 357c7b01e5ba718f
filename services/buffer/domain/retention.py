"""Which contents a stage keeps: what is older than all that may still ask for it can go."""

from services.buffer.domain.stage import Stage


def last_step_let_go(stage: Stage, oldest_kept: int) -> int:
    """The newest train step whose batch nobody trains again; 0 when there is none.

    `oldest_kept` is the step of the oldest checkpoint that may be resumed from.
    """
    keep_steps = stage.plan.config.buffer.keep_steps
    if keep_steps is None:
        return 0
    return max(0, min(oldest_kept, stage.trained_step - keep_steps))
