"""SAPO: a soft gate on the ratio instead of clipping."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio
from trinity.errors import UserError


def sapo(
    inputs: PolicyInputs,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    detach_gate: bool = False,
) -> PolicyLoss:
    """-A g(r) with the gate g(r) = sigmoid(tau (r - 1)) 4 / tau and r = p / p_old, all [B, T].

    tau is `tau_pos` where A > 0, else `tau_neg`. With `detach_gate` the gate is only a weight, as
    in Trinity-RFT: -A sg(g(r)) log p, which pulls harder the further the ratio has moved. Gao et
    al., https://arxiv.org/abs/2511.20347.
    """
    if not 0 < tau_pos <= tau_neg:
        raise UserError(
            f"`tau_pos` {tau_pos} and `tau_neg` {tau_neg} of the policy loss sapo: give "
            "0 < tau_pos <= tau_neg, so that updates that make tokens less likely fade sooner"
        )
    advantages_BT = inputs.advantages_BT
    log_ratio_BT = log_ratio(inputs)
    ratio_BT = log_ratio_BT.exp()
    tau_BT = torch.full_like(ratio_BT, tau_neg).masked_fill(advantages_BT > 0, tau_pos)
    gate_BT = torch.sigmoid(tau_BT * (ratio_BT - 1)) * (4 / tau_BT)
    gated_BT = gate_BT.detach() * inputs.logprobs_BT if detach_gate else gate_BT
    return PolicyLoss(
        name="sapo_loss",
        loss_BT=-advantages_BT * gated_BT,
        metrics={
            "ppo_kl": -log_ratio_BT,
            "avg_soft_gate": gate_BT,
            "avg_ratio": ratio_BT,
            "pos_adv_frac": advantages_BT > 0,
        },
    )
