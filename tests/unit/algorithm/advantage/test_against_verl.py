"""Where verl has the same estimator, ours gives the same numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from verl.trainer.ppo import core_algos

from tests.unit.algorithm.advantage.builders import compute, random_samples
from tests.unit.subtests import as_subtests
from trinity.algorithm.advantage.samples import Samples

SEEDS = range(5)
MAX_TOKENS = 7
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}
ALONE_TOLERANCE = 1e-7
"""verl's deviation of a group of one is a 1 in float32, whatever the rewards are."""
ESTIMATORS: list[tuple[str, dict[str, object], Callable[..., Any], dict[str, object]]] = [
    ("grpo", {}, core_algos.compute_grpo_outcome_advantage, {}),
    ("grpo", {"epsilon": 0.01}, core_algos.compute_grpo_outcome_advantage, {"epsilon": 0.01}),
    (
        "dr_grpo",
        {},
        core_algos.compute_grpo_outcome_advantage,
        {"norm_adv_by_std_in_grpo": False},
    ),
    (
        "grpo_passk",
        {},
        core_algos.compute_grpo_passk_outcome_advantage,
        {"config": {"norm_adv_by_std_in_grpo": True}},
    ),
    (
        "grpo_passk",
        {"norm_adv_by_std_in_grpo": False},
        core_algos.compute_grpo_passk_outcome_advantage,
        {"config": {"norm_adv_by_std_in_grpo": False}},
    ),
]


@as_subtests("dtype", TOLERANCES)
@as_subtests("seed", SEEDS)
@as_subtests(("name", "arguments", "estimator", "verls"), ESTIMATORS)
def test_an_estimator_is_verls(
    name: str,
    arguments: dict[str, object],
    estimator: Callable[..., Any],
    verls: dict[str, object],
    seed: int,
    dtype: torch.dtype,
) -> None:
    samples = _samples(seed, groups_of_one=name != "grpo_passk")
    rewards_BT, mask_BT = _as_tokens(samples, seed, dtype)
    advantages_BT, _ = estimator(rewards_BT, mask_BT, index=samples.groups, **verls)
    expected_B = (advantages_BT * mask_BT).sum(-1) / mask_BT.sum(-1)
    found_B = compute(name, samples, **arguments).values
    is_alone_B = samples.group_sizes[samples.groups] == 1
    for rows_B, tolerance in ((~is_alone_B, TOLERANCES[dtype]), (is_alone_B, ALONE_TOLERANCE)):
        np.testing.assert_allclose(
            found_B[rows_B], expected_B.double().numpy()[rows_B], rtol=tolerance, atol=tolerance
        )


def _samples(seed: int, *, groups_of_one: bool) -> Samples:
    """verl refuses groups of one for pass@k; ours gives them 0."""
    samples = random_samples(seed, max_steps=1)
    if groups_of_one:
        assert (samples.group_sizes == 1).any()
        return samples
    is_kept = samples.group_sizes[samples.groups] > 1
    kept = samples.chosen(is_kept)
    _, numbers = np.unique(kept.groups, return_inverse=True)
    object.__setattr__(kept, "groups", numbers.astype(np.int64))
    return kept


def _as_tokens(
    samples: Samples, seed: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rewards spread over the tokens of responses of many lengths."""
    rng = np.random.default_rng(seed)
    size = len(samples.rewards)
    lengths_B: npt.NDArray[np.int64] = rng.integers(1, MAX_TOKENS + 1, size=size)
    rewards_BT = np.zeros((size, MAX_TOKENS))
    rewards_BT[np.arange(size), lengths_B - 1] = samples.rewards
    mask_BT = np.arange(MAX_TOKENS) < lengths_B[:, None]
    return torch.tensor(rewards_BT, dtype=dtype), torch.tensor(mask_BT, dtype=dtype)
