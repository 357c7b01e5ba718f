"""GDPO is verl's, and says which part of the reward it lacks."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos as verl
from verl.utils import torch_functional

from tests.unit.algorithm.token_advantage.batches import assert_close, random_batch
from tests.unit.subtests import as_subtests
from trinity.algorithm.token_advantage.gdpo import gdpo
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.errors import UserError

WEIGHTS = {"format": 0.25, "accuracy": 2.0}


def verls(batch: TokenBatch, weights: dict[str, float] | None) -> torch.Tensor:
    """The whole of it, which verl computes in single precision."""
    num_rows, num_tokens = batch.mask_BT.shape
    parts = dict(batch.parts)
    names = list(weights or parts)
    config = AlgoConfig(
        gdpo_reward_keys=names, gdpo_reward_weights=list(weights.values()) if weights else None
    )
    response = torch.ones(num_rows, num_tokens, dtype=torch.int64)
    tensors = TensorDict(
        {"prompts": torch.zeros(num_rows, 1, dtype=torch.int64), "attention_mask": response},
        batch_size=num_rows,
    )
    tensors["attention_mask"] = torch.cat([response[:, :1], response], dim=1)
    advantages, _ = verl.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.tensor(batch.rewards_BT),
        response_mask=torch.tensor(batch.mask_BT).float(),
        index=batch.groups_B,
        config=config,
        non_tensor_batch=parts,
        batch=tensors,
    )
    return advantages


@as_subtests("weights", [None, WEIGHTS, {"format": 1.0}])
@as_subtests("seed", range(5))
def test_gives_what_verl_gives(weights: dict[str, float] | None, seed: int) -> None:
    batch = random_batch(seed)
    ours = gdpo(batch, reward_weights=weights).advantages_BT
    assert_close(ours, verls(batch, weights).numpy(), 2e-5)


@pytest.fixture
def doubles() -> Iterator[None]:
    """Also what torch takes by itself, where verl writes `torch.tensor(1.0)`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("divide", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_gives_what_verls_parts_give_in_double_precision(divide: bool, seed: int) -> None:
    batch = random_batch(seed)
    mask_BT = torch.tensor(batch.mask_BT).double()
    total_BT = torch.zeros_like(mask_BT)
    for name, weight in WEIGHTS.items():
        scores_BT = torch.zeros_like(mask_BT)
        scores_BT[:, 0] = torch.tensor(batch.parts[name])
        advantages_BT, _ = verl.compute_grpo_outcome_advantage(
            scores_BT, mask_BT, batch.groups_B, norm_adv_by_std_in_grpo=divide
        )
        total_BT += weight * advantages_BT
    expected_BT = torch_functional.masked_whiten(total_BT, mask_BT) * mask_BT
    found = gdpo(batch, reward_weights=WEIGHTS, norm_adv_by_std_in_grpo=divide)
    assert_close(found.advantages_BT, expected_BT.numpy())


def test_the_size_of_a_part_plays_no_part() -> None:
    batch = random_batch(3)
    batch = replace(batch, groups_B=np.arange(len(batch.groups_B)) // 7)
    large = {**batch.parts, "format": 1e4 * batch.parts["format"]}
    grown, usual = (
        gdpo(one, epsilon=1e-12).advantages_BT
        for one in (replace(batch, reward_parts=large), batch)
    )
    assert_close(grown, usual)
    weighed = gdpo(batch, reward_weights={"accuracy": 1.0, "format": 1e4}).advantages_BT
    assert np.abs(weighed - usual).max() > 0.1


def test_by_default_a_part_counts_once_also_where_differences_are_small() -> None:
    """x = +-1e-4 has the variance 2e-8 over two tokens, to which whitening adds 1e-8."""
    batch = replace(
        random_batch(0, num_rows=2, num_tokens=1),
        groups_B=np.zeros(2, np.int64),
        reward_parts={"format": np.array([2e-4, 0.0])},
    )
    found = gdpo(batch, norm_adv_by_std_in_grpo=False).advantages_BT
    assert_close(found, np.array([[1.0], [-1.0]]) / 3**0.5, 1e-6)


def test_figures_of_each_part_are_told() -> None:
    batch = random_batch(1)
    figures = gdpo(batch, reward_weights={"format": 1.0}).metrics
    assert figures["gdpo/format/mean"] == pytest.approx(batch.parts["format"].mean())
    assert not [name for name in figures if "accuracy" in name]


def test_a_part_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UserError, match=r"reward_weights\.speed is no part .* accuracy, format"):
        gdpo(random_batch(0), reward_weights={"speed": 1.0})


def test_rollouts_without_a_part_are_counted() -> None:
    batch = random_batch(0)
    some = batch.parts["format"].copy()
    some[:3] = np.nan
    batch = replace(batch, reward_parts={**batch.parts, "format": some})
    with pytest.raises(UserError, match="3 of 14 rollouts have no reward part `format`"):
        gdpo(batch)
    gdpo(batch, reward_weights={"accuracy": 1.0})


@pytest.mark.parametrize("weights", [{}, ["format"], "format", {"format": "much"}])
def test_weights_must_be_numbers_by_name(weights: object) -> None:
    with pytest.raises(UserError, match=r"reward_weights(\.format)? is"):
        gdpo(random_batch(0), reward_weights=weights)  # type: ignore[arg-type]
