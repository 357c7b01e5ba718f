"""MIX: PPO on rollouts and SFT on an expert's rows among them."""

from typing import Literal

from trinity.algorithm.policy_loss.contributions import mix_losses
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ppo import ppo
from trinity.algorithm.policy_loss.sft import sft


def mix(
    inputs: PolicyInputs,
    *,
    mu: float = 0.1,
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
    """(1 - mu) PPO over the rollouts + mu SFT over the expert's rows, [B, T].

    Both are normalised over their own rows of the whole batch, so mu is the expert's share for any
    number of its rows and any split of the batch. Trinity-RFT, https://arxiv.org/abs/2505.17826.
    """
    usual = ppo(
        inputs,
        clip_range=clip_range,
        clip_range_low=clip_range_low,
        clip_range_high=clip_range_high,
    )
    return mix_losses(inputs, usual, sft(inputs), mu=mu, expert_agg_mode=sft_loss_agg_mode)
