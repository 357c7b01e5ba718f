"""Fractions of tokens that a narrower mask leaves out, by the sign of their advantage."""

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix


def clipped_fractions(
    advantages_BT: FloatMatrix, mask_BT: BoolMatrix, kept_BT: BoolMatrix
) -> dict[str, float]:
    """Returns fractions of all tokens, and of those with positive and with negative advantage."""
    dropped_BT = mask_BT & ~kept_BT
    positive_BT, negative_BT = mask_BT & (advantages_BT > 0), mask_BT & (advantages_BT < 0)
    return {
        "frac_clipped": _share(dropped_BT, mask_BT),
        "frac_clipped_pos": _share(dropped_BT & positive_BT, positive_BT),
        "frac_clipped_neg": _share(dropped_BT & negative_BT, negative_BT),
    }


def _share(part_BT: BoolMatrix, whole_BT: BoolMatrix) -> float:
    return float(part_BT.sum() / max(int(whole_BT.sum()), 1))
