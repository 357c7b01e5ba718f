"""Overlong masking: truncated responses count in their group but are not trained on."""

from trinity.operators.rollouts import Changes, Rollouts


def mask_response_truncated(rollouts: Rollouts) -> Changes:
    """Zeroes the action mask of samples with the finish reason `length`.

    Their rewards still count in the mean of the group (https://arxiv.org/abs/2503.14476). Metric:
    `masked_truncated_count`.
    """
    masked_N = rollouts.is_truncated
    return Changes(
        masked=masked_N,
        metrics={"masked_truncated_count": rollouts.group_sums(masked_N.astype(float))},
    )
