"""Input and output types of token advantages: the whole batch of a train step, on every rank.

def discounted(batch: TokenBatch, *, gamma: float = 1.0) -> TokenAdvantages:
    returns_BT = discounted_sums(batch.rewards_BT, batch.mask_BT, gamma)
    return TokenAdvantages(advantages_BT=returns_BT, returns_BT=returns_BT)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from trinity.algorithm.token_advantage.need import NEED_HINTS, Need
from trinity.errors import UserError

FloatVector = npt.NDArray[np.float64]
FloatMatrix = npt.NDArray[np.float64]
BoolMatrix = npt.NDArray[np.bool_]
IntVector = npt.NDArray[np.int64]
IntMatrix = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """B rows of T response tokens, padded on the right; data that is not needed is None.

    Rewards are 0 in the padding. All other arrays may hold anything where the mask is false.
    """

    rewards_BT: FloatMatrix
    """Reward per token, with the KL penalty already subtracted."""
    mask_BT: BoolMatrix
    """True where the policy generated the token and it is trained on."""
    lengths_B: IntVector
    """Response tokens of each row, trained on or not."""
    groups_B: IntVector
    """Equal numbers are runs of one task in one explore step."""
    runs_B: IntVector | None = None
    """Rows with equal numbers belong to one run; None if each row is a separate run."""
    logprobs_BT: FloatMatrix
    """By the policy before this step, at the tokens taken; where each update calls the function
    again (`COMPARES_POLICIES`), by the policy that the update begins with."""
    rollout_logprobs_BT: FloatMatrix
    """By the rollout policy, as its engine gave them."""
    rollout_is_weights_BT: FloatMatrix | None = None
    """Weights of the rollout correction; None is 1 everywhere."""
    values_BT: FloatMatrix | None = None
    entropies_BT: FloatMatrix | None = None
    collision_BT: FloatMatrix | None = None
    discriminator_BT: FloatMatrix | None = None
    teacher_logprobs_BT: FloatMatrix | None = None
    """At temperature 1."""
    reference_logprobs_BT: FloatMatrix | None = None
    """By the reference model."""
    student_logprobs_BT: FloatMatrix | None = None
    """By the policy before this step, at temperature 1; None where rollouts were sampled at 1."""
    baselines_B: FloatVector | None = None
    reward_parts: Mapping[str, FloatVector] | None = None
    """By name, [B]; NaN where a row does not have the part."""
    unpenalised_B: FloatVector | None = None
    """Sum of each row's rewards without the KL penalty; None where there is no penalty."""

    @property
    def scores_B(self) -> FloatVector:
        """Sum of each row's rewards."""
        scores: FloatVector = self.rewards_BT.sum(-1)
        return scores

    @property
    def raw_scores_B(self) -> FloatVector:
        """Sum of each row's rewards before the KL penalty."""
        return self.scores_B if self.unpenalised_B is None else self.unpenalised_B

    @property
    def parts(self) -> Mapping[str, FloatVector]:
        """The reward's parts by name, [B].

        Raises: UserError if the batch lacks them.
        """
        if not self.reward_parts:
            raise UserError(f"algorithm.advantage_fn needs {NEED_HINTS['reward_parts']}")
        return self.reward_parts

    @property
    def student_BT(self) -> FloatMatrix:
        """Log-probabilities by the policy at the teacher's temperature."""
        return self.logprobs_BT if self.student_logprobs_BT is None else self.student_logprobs_BT

    def needed(self, need: Need) -> FloatMatrix:
        """Returns the data with this name; the reward's parts are in `parts`.

        Raises: UserError if the batch lacks them.
        """
        data = {
            "values": self.values_BT,
            "entropies": self.entropies_BT,
            "collision": self.collision_BT,
            "discriminator": self.discriminator_BT,
            "teacher": self.teacher_logprobs_BT,
            "reference": self.reference_logprobs_BT,
            "baselines": self.baselines_B,
        }[need]
        if data is None:
            raise UserError(f"algorithm.advantage_fn needs {NEED_HINTS[need]}")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """Advantages, and the targets of a critic."""

    advantages_BT: FloatMatrix
    """0 where the mask is false."""
    returns_BT: FloatMatrix | None = None
    """Targets of the critic, 0 where the mask is false; None where there is no critic."""
    mask_BT: BoolMatrix | None = None
    """A narrower mask, if tokens are to be left out of the policy's loss."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Reported under `advantage/`."""


TokenAdvantageFn = Callable[..., TokenAdvantages]
"""Takes `TokenBatch`, then `advantage_fn_args` by keyword."""
