"""Mutants that no test can tell from sound code, each with the reason."""

from collections.abc import Mapping

_TWO_AXES = "the last of two axes is axis 1"
EQUIVALENT: Mapping[str, str] = {
    "advantage.groups.draw_copies: donors_D = np.flatnonzero(~is_left_out_G & "
    "(samples.group_sizes > 0)) [0 to 1]": "groups of one are always left out themselves",
    "advantage.maxrl.maxrl: scales_N = np.where(is_used_G, means_G, 1.0)[samples.groups] "
    "[1.0 to 2.0]": "where the scale is not the mean the advantage is 0 in any case",
    "advantage.samples.group_means: means_G: FloatVector = first_G + sums_G / "
    "np.maximum(self.group_sizes, 1) [1 to 2]": "differences within a group of one add up to 0",
    "aggregation.token_weights: return weights_BT / (num_sequences * "
    "weights_BT.sum(-1, keepdim=True).clamp(min=1)) [without USub]": _TWO_AXES,
    "policy_loss.contributions._rows_contribution: weights_B = weights_B * (logs_BT.sum(-1) / "
    "rows.mask_BT.sum(-1).clamp(min=1)).exp() [without USub]": _TWO_AXES,
    "policy_loss.mix_chord.mix_chord: mu_B = torch.full(inputs.mask_BT.shape[:1], mu, "
    "device=inputs.mask_BT.device) [1 to 2]": "a mean over tokens of what all share is theirs too",
    "policy_loss.pairs._row_sums: return torch.where(inputs.mask_BT, values_BT, 0.0).sum(-1) "
    "[without USub]": _TWO_AXES,
    "token_advantage.gvpo.gvpo: masked(batch.logprobs_BT - batch.rollout_logprobs_BT, "
    "batch.mask_BT).sum(-1) [without USub]": _TWO_AXES,
    "token_advantage.gvpo.gvpo: scale_U = np.where(sizes_U > 1, beta * sizes_U / "
    "np.maximum(sizes_U - 1, 1), 0.0) [Gt to GtE]": "a unit alone differs from its mean by 0",
    "token_advantage.kto.kto: has_tokens_U = units.sums_U(batch.mask_BT.sum(-1)) > 0 "
    "[sum to mean]": "the mean of a mask is above 0 where its sum is",
    "token_advantage.kto.kto: has_tokens_U = units.sums_U(batch.mask_BT.sum(-1)) > 0 "
    "[without USub]": _TWO_AXES,
    "token_advantage.kto.kto: scores_U, changes_U = units.means_U(batch.scores_B), "
    "units.sums_U(gaps_BT.sum(-1)) [without USub]": _TWO_AXES,
    "token_advantage.masked.row_means: means_B: FloatVector = masked(values_BT, mask_BT).sum(-1) "
    "/ (mask_BT.sum(-1) + EPSILON) [without USub]": _TWO_AXES,
    "token_advantage.online_dpo.online_dpo: changes_U = units.sums_U(gaps_BT.sum(-1)) "
    "[without USub]": _TWO_AXES,
    "token_advantage.recurrence.next_values: padded = np.concatenate([np.where(mask_BT, "
    "values_BT, 0.0), np.zeros((num_rows, 1))], axis=1) [1 to 2]": (
        "the second column of zeros is not read"
    ),
    "token_advantage.rloo._less_others: scale_U = np.where(sizes_U > 1, sizes_U / "
    "np.maximum(sizes_U - 1, 1), 1.0) [Gt to GtE]": "one over max(0, 1) is 1 as well",
    "token_advantage.token_batch.scores_B: scores: FloatVector = self.rewards_BT.sum(-1) "
    "[without USub]": _TWO_AXES,
    "token_advantage.units.means_U: means_U: FloatVector = first_U + differences_U / "
    "np.maximum(self.sizes_U, 1) [1 to 2]": "differences within a unit of one row add up to 0",
}
"""By `Mutant.name`."""
