"""Retention of contents: the newest train step whose batch is no longer needed."""

from services.buffer.domain.stage import Stage


def last_step_let_go(stage: Stage, oldest_kept: int) -> int:
    """Returns the newest train step whose batch is never trained again; 0 when there is none.

    `oldest_kept` is the step of the oldest checkpoint that a trainer may resume from.
    """
    keep_steps = stage.plan.config.buffer.keep_steps
    if keep_steps is None:
        return 0
    return max(0, min(oldest_kept, stage.trained_step - keep_steps))
