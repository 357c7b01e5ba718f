"""What a plan asks for of batches with replay, in the words of the model that works them out."""

from tests.support.replay_model import Rules
from trinity.config.plan.stage_plan import StagePlan


def rules_of(plan: StagePlan, num_steps: int) -> Rules | None:
    """None where every sample is trained once."""
    replay = plan.replay
    if replay is None or replay.cooldown_steps is None:
        return None
    arguments = {**replay.priority_fn_args}
    assert not arguments.get("sigma"), "the model knows no chance"
    return Rules(
        num_steps=num_steps,
        size=plan.num_rollout_rows,
        rows_per_explore_step=plan.rows_per_explore_step,
        cooldown=replay.cooldown_steps,
        decay=float(str(arguments["decay"])),
        use_limit=int(str(arguments.get("use_count_limit", 0))),
        oldest=[plan.oldest_version(step) for step in range(1, num_steps + 1)],
    )
