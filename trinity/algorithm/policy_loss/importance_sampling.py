"""Plain importance sampling, without any clip."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio


def importance_sampling(inputs: PolicyInputs) -> PolicyLoss:
    """-A p / p_old of each token, [B, T]."""
    log_ratio_BT = log_ratio(inputs)
    ratio_BT = log_ratio_BT.exp()
    return PolicyLoss(
        name="pg_loss",
        loss_BT=-inputs.advantages_BT * ratio_BT,
        metrics={"ratio/mean": ratio_BT, "approx_kl": -log_ratio_BT},
    )
