"""GRPO on the task's rewards and a teacher's judgement of every token, in one advantage."""

from dataclasses import replace

from trinity.algorithm.token_advantage.grpo_verl import grpo_verl
from trinity.algorithm.token_advantage.on_policy_distill import on_policy_distill
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def grpo_distill(
    batch: TokenBatch,
    *,
    kl_coef: float = 1.0,
    max_gap: float | None = None,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    unit: Unit = "run",
) -> TokenAdvantages:
    """A = A_grpo + kl_coef (log p_teacher - log p_student) at each token, [B, T].

    A_grpo is `grpo_verl`'s advantage of the row. The teacher says which tokens to change where the
    reward only says that the answer was wrong, and the reward goes on where the teacher ends.
    `unit` is that of `grpo_verl`. `max_gap` clips the difference on both sides, as verl's
    `loss_max_clamp` does. verl adds up two clipped losses, which on policy have the same gradient.
    https://thinkingmachines.ai/blog/on-policy-distillation/
    """
    if kl_coef < 0:
        raise UserError(f"algorithm.advantage_fn_args.kl_coef is {kl_coef}; give 0 or more")
    task = grpo_verl(
        batch, epsilon=epsilon, norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo, unit=unit
    )
    teacher = on_policy_distill(batch, kl_coef=kl_coef, max_gap=max_gap)
    return replace(teacher, advantages_BT=task.advantages_BT + teacher.advantages_BT)
