"""The functions that estimate advantages in the trainer, and the outputs that they need."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.token_advantage import (
    COMPARES_POLICIES,
    TOKEN_ADVANTAGES,
    needs_of,
)
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.config.plan.stage_plan import StagePlan

DISTRIBUTION_NEEDS = ("collision", "discriminator")
"""Further data that advantages may need, besides entropies, which are nearly free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimationFunctions:
    """The functions and settings that turn rollouts into advantages."""

    bypass: bool
    """True if ratios are taken to the rollout policy; otherwise to the proximal one."""
    correction: CorrectionSettings | None
    penalty: str
    """Name of the divergence's estimator, or `none`."""
    advantage: Callable[[TokenBatch], TokenAdvantages] | None
    """None where the buffer has computed advantages."""
    follows_policy: bool = False
    """True if each update makes the advantage again, from the policy as it is then."""

    @classmethod
    def from_plan(cls, plan: StagePlan) -> "EstimationFunctions":
        """Chooses the functions from the plan.

        Raises: UserError when a function given by its path cannot be loaded.
        """
        algorithm = plan.algorithm
        advantage = None
        if algorithm.advantage_in_trainer:
            function = TOKEN_ADVANTAGES.get(algorithm.advantage_fn)
            advantage = partial(function, **algorithm.advantage_fn_args)
        settings = algorithm.rollout_correction
        return cls(
            bypass=algorithm.bypass_old_logprobs,
            correction=settings if settings.is_on else None,
            penalty=algorithm.kl_penalty_fn,
            advantage=advantage,
            follows_policy=advantage is not None and algorithm.advantage_fn in COMPARES_POLICIES,
        )

    @property
    def corrects_in_loss(self) -> bool:
        """True if weights and rejections lead to the policy in training, as in verl's bypass mode.

        Each update then computes them again, too.
        """
        return self.bypass and self.correction is not None


def actor_outputs(plan: StagePlan) -> tuple[str, ...]:
    """Returns the names of the outputs to compute before the policy changes."""
    algorithm = plan.algorithm
    if not plan.has_rollouts:
        return ("logprobs",) if algorithm.policy_loss_fn in TOKEN_SELECTIONS.names() else ()
    needs = needs_of(algorithm.advantage_fn) if algorithm.advantage_in_trainer else frozenset()
    wanted = [name for name in DISTRIBUTION_NEEDS if name in needs]
    compares = algorithm.needs_proximal or (has_teacher(plan) and _has_old_rollouts(plan))
    if not wanted and "entropies" not in needs and not compares:
        return ()
    return ("logprobs", "entropies", *wanted)


def has_teacher(plan: StagePlan) -> bool:
    """Returns true if the advantage compares the policy with a teacher's log-probabilities."""
    algorithm = plan.algorithm
    return algorithm.advantage_in_trainer and "teacher" in needs_of(algorithm.advantage_fn)


def _has_old_rollouts(plan: StagePlan) -> bool:
    """Returns true if rollouts may be of weights that the policy has left behind.

    What their policy lacked of the teacher is then no longer what this one lacks: learning it again
    for as many steps as they are old overshoots.
    """
    interval = plan.config.synchronizer.sync_interval
    return plan.is_asynchronous or interval > 1 or plan.replay is not None
