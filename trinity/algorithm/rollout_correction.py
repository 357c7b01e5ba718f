"""What makes up for an engine, or weights, that differ from the policy which is trained.

The behaviour policy (rollout) made the tokens; the proximal one is the trainer's own before the
step. See verl's rollout correction, and https://arxiv.org/abs/2505.24298 (decoupled PPO).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors on the losses of tokens, and the tokens that still count."""

    weights_BT: FloatMatrix | None
    """None is 1 everywhere."""
    mask_BT: BoolMatrix
    metrics: Mapping[str, float] = field(default_factory=dict)
