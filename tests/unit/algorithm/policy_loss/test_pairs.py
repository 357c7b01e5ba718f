"""Losses of pairs against slow loops over tokens: values and gradients."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.support.oracle import losses as reference
from tests.support.oracle.losses import Scalar
from tests.unit.algorithm.policy_loss.batches import Loss, outcome, random_inputs
from tests.unit.algorithm.policy_loss.test_against_formula import assert_is
from tests.unit.subtests import as_subtests
from trinity.algorithm.policy_loss.ipo import ipo
from trinity.algorithm.policy_loss.orpo import orpo
from trinity.algorithm.policy_loss.simpo import simpo

CASES: dict[str, tuple[Loss, Callable[..., Scalar]]] = {
    "ipo": (partial(ipo, beta=0.3), partial(reference.ipo, beta=0.3, normalized=True)),
    "ipo-sums": (
        partial(ipo, beta=0.3, length_normalized=False),
        partial(reference.ipo, beta=0.3, normalized=False),
    ),
    "simpo": (partial(simpo, beta=1.7, gamma=0.4), partial(reference.simpo, beta=1.7, gamma=0.4)),
    "orpo": (partial(orpo, beta=0.25), partial(reference.orpo, beta=0.25)),
}


@as_subtests("seed", range(4))
@as_subtests("name", CASES)
def test_a_loss_of_pairs_is_the_mean_of_its_formula(name: str, seed: int) -> None:
    ours, of_pair = CASES[name]

    def slow(rows: list[reference.Row]) -> Scalar:
        pairs = zip(rows[::2], rows[1::2], strict=True)
        return reference.mean([of_pair(chosen, rejected) for chosen, rejected in pairs])

    assert_is(ours, slow, random_inputs(seed, num_rows=4))


def test_ipo_rests_at_its_margin_where_dpo_would_push_on() -> None:
    inputs = random_inputs(2, num_rows=2)
    assert inputs.reference_logprobs_BT is not None
    inputs.reference_logprobs_BT.copy_(inputs.logprobs_BT)
    lead = 1 / (2 * 0.5)
    inputs.logprobs_BT[0] += torch.where(inputs.mask_BT[0], lead, 0.0)
    found = outcome(partial(ipo, beta=0.5), inputs)
    assert float(found.loss) == pytest.approx(0.0, abs=1e-20)
    assert float(found.gradient_BT.abs().max()) < 1e-10


def test_an_answer_twice_as_long_counts_the_same_under_simpo_and_orpo() -> None:
    inputs = random_inputs(1, num_rows=2, num_tokens=4)
    inputs.mask_BT[:] = True
    inputs.logprobs_BT[0] = -0.5
    inputs.logprobs_BT[1] = -1.0
    whole = [float(outcome(loss, inputs).loss) for loss in (simpo, orpo)]
    inputs.mask_BT[0, 2:] = False
    assert [float(outcome(loss, inputs).loss) for loss in (simpo, orpo)] == pytest.approx(whole)
    assert whole[0] == pytest.approx(math.log1p(math.exp(-(2 * 0.5 - 1))))


def test_orpo_tells_both_parts_of_its_loss() -> None:
    """Answers of probability 1/2 and 1/4 a token have odds of 1 and 1/3: a preference of 3/4."""
    inputs = random_inputs(1, num_rows=2, num_tokens=4)
    inputs.logprobs_BT[0] = math.log(1 / 2)
    inputs.logprobs_BT[1] = math.log(1 / 4)
    figures = outcome(partial(orpo, beta=0.5), inputs).figures
    assert figures["sft_loss"] == pytest.approx(math.log(2))
    assert figures["odds_ratio_loss"] == pytest.approx(math.log(4 / 3))
    assert figures["chosen_reward"] == pytest.approx(0.5 * math.log(1 / 2))
    assert figures["rejected_reward"] == pytest.approx(0.5 * math.log(1 / 4))
    assert figures["accuracy_mean"] == 1.0
