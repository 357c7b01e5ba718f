"""Our losses against verl's, in double precision."""

import pytest
import torch

from trinity.algorithm.aggregation import BatchTotals, token_weights
from trinity.algorithm.kl.estimators import KL_ESTIMATORS
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.ppo import ppo

pytestmark = pytest.mark.usefixtures("ranks")
SHAPE = (32, 20)


def random_inputs() -> PolicyInputs:
    generator = torch.Generator().manual_seed(3)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(SHAPE, generator=generator, dtype=torch.float64)

    mask = torch.rand(SHAPE, generator=generator) < 0.7
    old = -2 + normal(0.5)
    return PolicyInputs(
        logprobs_BT=old + normal(0.6),
        old_logprobs_BT=old,
        advantages_BT=normal(1.0),
        mask_BT=mask,
    )


@pytest.mark.parametrize(
    "mode",
    ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"],
)
def test_the_ppo_loss_is_verls(mode: str) -> None:
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import FSDPActorConfig

    inputs = random_inputs()
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.1,
        clip_ratio_high=0.3,
        clip_ratio_c=2.5,
    )
    theirs, metrics = compute_policy_loss_vanilla(
        old_log_prob=inputs.old_logprobs_BT,
        log_prob=inputs.logprobs_BT,
        advantages=inputs.advantages_BT,
        response_mask=inputs.mask_BT.double(),
        loss_agg_mode=mode,
        config=config,
    )
    ours = ppo(inputs, clip_range_low=0.1, clip_range_high=0.3, clip_ratio_c=2.5)
    totals = BatchTotals(
        num_tokens=int(inputs.mask_BT.sum()),
        num_sequences=int(inputs.mask_BT.any(-1).sum()),
        max_response_tokens=SHAPE[1],
    )
    weights = token_weights(inputs.mask_BT, mode, totals, torch.float64)  # type: ignore[arg-type]
    assert (ours.loss_BT * weights).sum().item() == pytest.approx(theirs.item(), rel=1e-8)
    for name in ("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"):
        mean = ours.metrics[name][inputs.mask_BT].double().mean().item()
        assert mean == pytest.approx(metrics[f"actor/{name}"], rel=1e-6)


@pytest.mark.parametrize("name", ["k1", "k2", "low_var_kl", "abs"])
def test_the_divergence_is_verls(name: str) -> None:
    from verl.trainer.ppo.core_algos import kl_penalty

    inputs = random_inputs()
    ours = KL_ESTIMATORS[name](inputs.logprobs_BT, inputs.old_logprobs_BT)
    torch.testing.assert_close(
        ours, kl_penalty(inputs.logprobs_BT, inputs.old_logprobs_BT, name), rtol=1e-12, atol=1e-12
    )
