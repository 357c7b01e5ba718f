"""CHORD: like MIX, with a schedule of the expert's share and SFT weighted by uncertainty."""

import math
from dataclasses import replace
from typing import Literal

import torch

from trinity.algorithm.policy_loss.contributions import mix_losses
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ppo import ppo
from trinity.algorithm.policy_loss.sft import sft
from trinity.algorithm.policy_loss.sft_phi import sft_phi


def mix_chord(
    inputs: PolicyInputs,
    *,
    mu_warmup_steps: int = 0,
    mu_decay_steps: int = 0,
    mu_peak: float = 0.1,
    mu_valley: float = 0.1,
    enable_phi_function: bool = True,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    sft_loss_agg_mode: Literal[
        "token-mean",
        "token-sum",
        "seq-mean-token-sum",
        "seq-mean-token-mean",
        "seq-mean-token-sum-norm",
    ] = "token-mean",
) -> PolicyLoss:
    """(1 - mu) PPO over the rollouts + mu SFT-phi over the expert's rows, [B, T].

    mu rises linearly to its peak during the warm-up steps, then falls along a cosine to its valley.
    Both parts are normalised over their own rows of the whole batch.
    Zhang et al., https://arxiv.org/abs/2508.11408.
    """
    usual = ppo(
        inputs,
        clip_range=clip_range,
        clip_range_low=clip_range_low,
        clip_range_high=clip_range_high,
    )
    expert = sft_phi(inputs) if enable_phi_function else sft(inputs)
    mu = expert_share(inputs.step, mu_warmup_steps, mu_decay_steps, mu_peak, mu_valley)
    loss = mix_losses(inputs, usual, expert, mu=mu, expert_agg_mode=sft_loss_agg_mode)
    mu_B = torch.full(inputs.mask_BT.shape[:1], mu, device=inputs.mask_BT.device)
    return replace(loss, metrics={**loss.metrics, "mu": mu_B})


def expert_share(step: int, warmup: int, decay: int, peak: float, valley: float) -> float:
    """Returns mu at a train step; the first step is 1."""
    if step < warmup:
        return peak * step / warmup
    if step >= warmup + decay:
        return valley
    return valley + (peak - valley) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / decay))
