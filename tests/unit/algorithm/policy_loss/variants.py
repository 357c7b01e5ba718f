"""Every registered loss, and those of its settings that take another way."""

from functools import partial

from tests.unit.algorithm.policy_loss.batches import Loss
from trinity.algorithm.policy_loss import PAIR_LOSSES, POLICY_LOSSES

SETTINGS: dict[str, tuple[str, dict[str, object]]] = {
    "ppo-masking": ("ppo", {"enable_sequence_masking": True, "delta_sequence_masking": 0.02}),
    "ppo-fallback": ("ppo", {"fallback_to_policy_gradient": True}),
    "cispo-masks": ("cispo", {"enable_mask_clip": True, "mask_clip_range_low": 0.2}),
    "sapo-detached": ("sapo", {"detach_gate": True}),
    "rec-ring": ("rec", {"clip_mode": "ring", "weight": "importance_sampling"}),
    "rec-rows": ("rec", {"clip_mode": "gspo-one-side", "weight": "gspo_importance_sampling"}),
    "rec-advantage": ("rec", {"clip_mode": "one-side", "weight": "advantage", "temp": 0.01}),
    "rec-k2": ("rec", {"clip_mode": "two-side", "regularizer": "k2", "regularizer_coef": 0.1}),
    "mix-rows": ("mix", {"mu": 0.4, "sft_loss_agg_mode": "seq-mean-token-mean"}),
    "ipo-sums": ("ipo", {"length_normalized": False}),
    "chord": ("mix_chord", {"mu_warmup_steps": 5, "mu_peak": 0.9}),
}
VARIANTS: dict[str, Loss] = {
    name: POLICY_LOSSES.get(name) for name in sorted(POLICY_LOSSES.builtins)
} | {
    variant: partial(POLICY_LOSSES.get(name), **settings)
    for variant, (name, settings) in SETTINGS.items()
}
IN_PAIRS = {*PAIR_LOSSES, "ipo-sums", "kto"}
WITHOUT_ADVANTAGES = {"sft", "sft_is", "sft_phi", *IN_PAIRS}
WITH_ANOTHER_PULL = {"dro", "kl_cov", "rec-k2"}
"""Those that also hold the policy to the old one."""
POLICY_GRADIENTS = sorted(VARIANTS.keys() - WITHOUT_ADVANTAGES - WITH_ANOTHER_PULL)
