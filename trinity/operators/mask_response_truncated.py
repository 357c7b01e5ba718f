"""Overlong masking: what the token limit cut off is compared with others and not trained on."""

from trinity.operators.rollouts import Changes, Rollouts


def mask_response_truncated(rollouts: Rollouts) -> Changes:
    """Zero action mask where the finish reason is `length`.

    Its reward still counts in the mean of its group (https://arxiv.org/abs/2503.14476). Figure:
    `masked_truncated_count`.
    """
    masked_N = rollouts.is_truncated
    return Changes(
        masked=masked_N,
        metrics={"masked_truncated_count": rollouts.group_sums(masked_N.astype(float))},
    )
