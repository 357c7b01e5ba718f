"""Statistics over the sums of rows."""

from trinity.algorithm.token_advantage.token_batch import FloatMatrix


def mean_and_std(values_BT: FloatMatrix) -> tuple[float, float]:
    """Returns mean and unbiased standard deviation, over the rows, of each row's sum."""
    sums_B = values_BT.sum(-1)
    if not len(sums_B):
        return 0.0, 0.0
    return float(sums_B.mean()), float(sums_B.std(ddof=1)) if len(sums_B) > 1 else 0.0
