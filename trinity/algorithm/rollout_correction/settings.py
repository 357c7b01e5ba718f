"""Settings of a rollout correction."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trinity.algorithm.rollout_correction.thresholds import (
    Bounds,
    rejection_bounds,
    weight_bounds,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionSettings:
    """Section `algorithm.rollout_correction`, with verl's names.

    CorrectionSettings(rollout_is="token", rollout_is_threshold=2.0).check()
    """

    rollout_is: Literal["token", "sequence", "none"] = "none"
    """Importance weights: per token, or one for a whole row, repeated at all its tokens."""
    rollout_is_threshold: float | str = 2.0
    """A number: larger weights are truncated to it. `lower_upper`: weights outside become 0."""
    rollout_is_batch_normalize: bool = False
    """Divides weights by their mean over the batch."""
    rollout_rs: str = "none"
    """Rejection: {token,seq_sum,seq_mean}_{k1,k2,k3}, seq_max_{k2,k3}, several with commas."""
    rollout_rs_threshold: float | str | None = None
    """For k1 bounds of the ratio, `lower_upper` or the upper one alone; for k2 and k3 the largest
    divergence. One for all of rollout_rs, or one each with commas."""

    @property
    def is_on(self) -> bool:
        """True if anything is corrected."""
        return self.rollout_is != "none" or self.rollout_rs != "none"

    def check(self) -> None:
        """Raises: UserError naming the invalid setting."""
        self.weight_bounds()
        self.rejection_bounds()

    def weight_bounds(self) -> Bounds | None:
        """Returns the bounds of importance weights; None without weights."""
        return None if self.rollout_is == "none" else weight_bounds(self.rollout_is_threshold)

    def rejection_bounds(self) -> Mapping[str, Bounds]:
        """Returns the bounds of each statistic that rows or tokens are rejected by."""
        if self.rollout_rs == "none":
            return {}
        return rejection_bounds(self.rollout_rs, self.rollout_rs_threshold)
