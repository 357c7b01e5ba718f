"""What verl also has gives verl's numbers, in float64 to 1e-9 and in float32 to 1e-5."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos as verl

from tests.unit.algorithm.token_advantage.batches import (
    assert_close,
    random_batch,
    with_outcome_rewards,
)
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import TokenBatch

Tensors = SimpleNamespace
Expected = tuple[torch.Tensor, torch.Tensor]
TOLERANCES = [(torch.float64, 1e-9), (torch.float32, 1e-5)]


def gae(t: Tensors) -> Expected:
    advantages, returns = verl.compute_gae_advantage_return(t.rewards, t.values, t.mask, 0.97, 0.9)
    return advantages, returns


def reinforce_plus_plus(t: Tensors) -> Expected:
    advantages, returns = verl.compute_reinforce_plus_plus_outcome_advantage(
        t.rewards, t.mask, config=AlgoConfig(gamma=0.97)
    )
    return advantages, returns


def token_baseline(estimator: Callable[..., Expected]) -> Callable[[Tensors], Expected]:
    def expected(t: Tensors) -> Expected:
        return estimator(
            t.rewards,
            t.mask,
            t.groups,
            t.logprobs,
            t.collision,
            t.rollout_is_weights,
            handle_zero_tail=True,
        )

    return expected


CASES: dict[str, tuple[str, dict[str, object], Callable[[Tensors], Expected]]] = {
    "gae": ("gae", {"gamma": 0.97, "lam": 0.9}, gae),
    "ppo": ("ppo", {"gamma": 0.97, "lam": 0.9}, gae),
    "reinforce_plus_plus": ("reinforce_plus_plus", {"gamma": 0.97}, reinforce_plus_plus),
    "reinforceplusplus": ("reinforceplusplus", {"gamma": 0.97}, reinforce_plus_plus),
    "reinforce_plus_plus_baseline": (
        "reinforce_plus_plus_baseline",
        {},
        lambda t: verl.compute_reinforce_plus_plus_baseline_outcome_advantage(
            t.rewards, t.mask, t.groups
        ),
    ),
    "rloo": (
        "rloo",
        {},
        lambda t: verl.compute_rloo_outcome_advantage(t.rewards, t.mask, t.groups),
    ),
    "remax": (
        "remax",
        {},
        lambda t: verl.compute_remax_outcome_advantage(t.rewards, t.baselines, t.mask),
    ),
    "grpo": (
        "grpo_verl",
        {"epsilon": 1e-4},
        lambda t: verl.compute_grpo_outcome_advantage(t.rewards, t.mask, t.groups, epsilon=1e-4),
    ),
    "dr_grpo": (
        "grpo_verl",
        {"norm_adv_by_std_in_grpo": False},
        lambda t: verl.compute_grpo_outcome_advantage(
            t.rewards, t.mask, t.groups, norm_adv_by_std_in_grpo=False
        ),
    ),
    "opo": ("opo", {}, lambda t: verl.compute_opo_outcome_advantage(t.rewards, t.mask, t.groups)),
    "gpg": (
        "gpg",
        {"f_norm": 0.5},
        lambda t: verl.compute_gpg_outcome_advantage(t.rewards, t.mask, t.groups, f_norm=0.5),
    ),
    "optimal_token_baseline": (
        "optimal_token_baseline",
        {},
        token_baseline(verl.compute_optimal_token_baseline_advantage),
    ),
    "tir_optimal_token_baseline": (
        "tir_optimal_token_baseline",
        {},
        token_baseline(verl.compute_multi_turn_optimal_token_baseline_advantage),
    ),
}


@pytest.fixture
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Also what torch takes by itself, where verl writes `torch.tensor(1.0)`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, indirect=["dtype"])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_gives_what_verl_gives(case: str, gaps: bool, dtype: torch.dtype, tolerance: float) -> None:
    name, args, expected = CASES[case]
    for seed in range(5):
        batch = random_batch(seed, gaps=gaps)
        for given in (batch, with_outcome_rewards(batch, seed)):
            actual = TOKEN_ADVANTAGES.get(name)(given, **args)
            tensors = _tensors(given, dtype)
            advantages, returns = (x * tensors.mask for x in expected(tensors))
            assert_close(actual.advantages_BT, advantages.numpy(), tolerance)
            if actual.returns_BT is not None:
                assert_close(actual.returns_BT, returns.numpy(), tolerance)


@pytest.mark.parametrize(
    ("name", "estimator", "gaps"),
    [
        ("optimal_token_baseline", verl.compute_optimal_token_baseline_advantage, False),
        (
            "tir_optimal_token_baseline",
            verl.compute_multi_turn_optimal_token_baseline_advantage,
            True,
        ),
    ],
)
def test_token_baselines_without_the_zero_tail_are_as_in_verl(
    name: str, estimator: Callable[..., Expected], gaps: bool
) -> None:
    for seed in range(5):
        batch = random_batch(seed, gaps=gaps)
        batch.mask_BT[::3] = False
        t = _tensors(batch, torch.float64)
        expected, _ = estimator(
            t.rewards,
            t.mask,
            t.groups,
            t.logprobs,
            t.collision,
            t.rollout_is_weights,
            handle_zero_tail=False,
        )
        actual = TOKEN_ADVANTAGES.get(name)(batch, handle_zero_tail=False)
        assert_close(actual.advantages_BT, expected.numpy())


def _tensors(batch: TokenBatch, dtype: torch.dtype) -> Tensors:
    def tensor(array: np.ndarray | None) -> torch.Tensor:
        assert array is not None
        return torch.tensor(array).to(dtype)

    return Tensors(
        rewards=tensor(batch.rewards_BT),
        mask=tensor(batch.mask_BT),
        groups=batch.groups_B,
        values=tensor(batch.values_BT),
        logprobs=tensor(batch.logprobs_BT),
        collision=tensor(batch.collision_BT),
        rollout_is_weights=tensor(batch.rollout_is_weights_BT),
        baselines=tensor(batch.baselines_B),
    )
