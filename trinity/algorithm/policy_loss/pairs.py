"""Values of pairs: two neighbouring rows, the chosen answer first, then the rejected one.

Shapes: B rows of T tokens, P = B / 2 pairs.
"""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs


def sums_over_reference(inputs: PolicyInputs) -> torch.Tensor:
    """Returns the sum of log p - log p_reference of each row of each pair, [P, 2]."""
    assert inputs.reference_logprobs_BT is not None, "this loss compares with a reference"
    return _pairs(_row_sums(inputs.logprobs_BT - inputs.reference_logprobs_BT, inputs))


def means_over_reference(inputs: PolicyInputs) -> torch.Tensor:
    """Returns the mean over tokens of the same, [P, 2]; 0 for a row without tokens."""
    return sums_over_reference(inputs) / _pairs(_row_lengths(inputs))


def mean_logprobs(inputs: PolicyInputs) -> torch.Tensor:
    """Returns the mean over tokens of log p, [P, 2]; 0 for a row without tokens."""
    return _pairs(_row_sums(inputs.logprobs_BT, inputs) / _row_lengths(inputs))


def for_both_rows(values_P: torch.Tensor) -> torch.Tensor:
    """Returns the value of each row's pair, [B]."""
    return values_P.repeat_interleave(2)


def pair_metrics(rewards_P2: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the implicit rewards of both answers, and how often the chosen one's is higher."""
    chosen_P, rejected_P = rewards_P2[:, 0], rewards_P2[:, 1]
    return {
        "chosen_reward": for_both_rows(chosen_P),
        "rejected_reward": for_both_rows(rejected_P),
        "accuracy_mean": for_both_rows(chosen_P > rejected_P),
    }


def _pairs(values_B: torch.Tensor) -> torch.Tensor:
    assert len(values_B) % 2 == 0, "the rows of a pair travel together"
    return values_B.view(-1, 2)


def _row_sums(values_BT: torch.Tensor, inputs: PolicyInputs) -> torch.Tensor:
    return torch.where(inputs.mask_BT, values_BT, 0.0).sum(-1)


def _row_lengths(inputs: PolicyInputs) -> torch.Tensor:
    return inputs.mask_BT.sum(-1).clamp(min=1)
