"""Random batches of two policies that differ."""

from dataclasses import dataclass

import numpy as np
import torch

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix


@dataclass(frozen=True)
class Gap:
    """Log-probabilities of the proximal policy and of the one that made the tokens."""

    proximal_BT: FloatMatrix
    rollout_BT: FloatMatrix
    mask_BT: BoolMatrix

    def tensors(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        arrays = (self.proximal_BT, self.rollout_BT, self.mask_BT)
        first, second, third = (torch.tensor(array).to(dtype) for array in arrays)
        return first, second, third


def random_gap(
    seed: int, *, size: float = 0.3, num_rows: int = 16, num_tokens: int = 40, empty: bool = False
) -> Gap:
    """Ragged rows with gaps in the mask; some rows have no tokens if `empty`."""
    draw = np.random.default_rng(seed)
    shape = (num_rows, num_tokens)
    mask_BT = np.arange(num_tokens) < draw.integers(1, num_tokens + 1, num_rows)[:, None]
    mask_BT &= draw.random(shape) > 0.2
    mask_BT[:, 0] = True
    if empty:
        mask_BT[draw.random(num_rows) < 0.3] = False
    proximal_BT = -draw.exponential(1.0, shape)
    noise_BT = size * draw.standard_t(3, shape)
    return Gap(proximal_BT, proximal_BT + noise_BT, mask_BT)
