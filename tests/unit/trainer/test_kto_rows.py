"""KTO on labelled rows, against a slow loop after the paper and TRL's trainer."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from services.trainer.batch_rows import with_mismatched
from tests.unit.subtests import as_subtests
from tests.unit.trainer.builders import data_row
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.kto import kto
from trinity.algorithm.token_selection.kto import select_kto
from trinity.algorithm.token_selection.selection_batch import SelectionBatch
from trinity.errors import UserError

BETA, GOOD, BAD = 0.3, 1.5, 0.5


def random_inputs(seed: int, shift: float) -> tuple[SelectionBatch, PolicyInputs, list[bool]]:
    """Five answers, each followed by its prompt with another answer; rows of 1 to 4 tokens."""
    generator = np.random.default_rng(seed)
    mask_BT = np.arange(4) < generator.integers(1, 5, 10)[:, None]
    logprobs_BT = np.where(mask_BT, -generator.exponential(1.0, (10, 4)), 0.0)
    reference_BT = np.where(mask_BT, logprobs_BT - generator.normal(shift, 0.5, (10, 4)), 0.0)
    labels = [bool(each) for each in generator.integers(0, 2, 5)]
    signs_B = np.zeros(10)
    signs_B[::2] = np.where(labels, 1.0, -1.0)
    advantages_BT = np.where(mask_BT, signs_B[:, None], 0.0)
    batch = SelectionBatch(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=logprobs_BT,
        advantages_BT=advantages_BT,
        mask_BT=mask_BT,
        lots_BT=np.zeros((10, 4)),
        reference_logprobs_BT=reference_BT,
    )
    inputs = PolicyInputs(
        logprobs_BT=torch.tensor(logprobs_BT, requires_grad=True),
        old_logprobs_BT=torch.tensor(logprobs_BT),
        advantages_BT=torch.tensor(advantages_BT),
        mask_BT=torch.tensor(mask_BT),
        reference_logprobs_BT=torch.tensor(reference_BT),
        chosen_BT=torch.tensor(select_kto(batch)),
    )
    return batch, inputs, labels


def slow_shift(batch: SelectionBatch) -> float:
    """The mean over mismatched rows, clamped as a whole: TRL clamps the mean, too."""
    assert batch.reference_logprobs_BT is not None
    sums = []
    for row in range(1, len(batch.mask_BT), 2):
        total = 0.0
        for place in range(batch.mask_BT.shape[1]):
            if batch.mask_BT[row, place]:
                total += batch.logprobs_BT[row, place] - batch.reference_logprobs_BT[row, place]
        sums.append(total)
    return max(0.0, sum(sums) / len(sums))


@as_subtests("shift", [0.7, -0.7])
@as_subtests("seed", range(5))
def test_the_loss_and_its_gradient_are_those_of_a_loop(seed: int, shift: float) -> None:
    batch, inputs, labels = random_inputs(seed, shift)
    z = slow_shift(batch)
    assert (z > 0) == (shift > 0)
    found = kto(inputs, beta=BETA, desirable_weight=GOOD, undesirable_weight=BAD)
    assert found.loss_B is not None
    found.loss_B.mean().backward()
    gradient_BT = inputs.logprobs_BT.grad
    assert gradient_BT is not None and batch.reference_logprobs_BT is not None
    for number, label in enumerate(labels):
        row = 2 * number
        gaps_T = batch.logprobs_BT[row] - batch.reference_logprobs_BT[row]
        gap = float(gaps_T[batch.mask_BT[row]].sum())
        weight, sign = (GOOD, 1.0) if label else (BAD, -1.0)
        q = 1 / (1 + math.exp(-sign * BETA * (gap - z)))
        assert found.loss_B[row].item() == pytest.approx(weight * (1 - q), rel=1e-12)
        assert found.loss_B[row + 1].item() == found.loss_B[row].item()
        slope = -weight * sign * BETA * q * (1 - q) / len(labels)
        expected_T = np.where(batch.mask_BT[row], slope, 0.0)
        assert gradient_BT[row].numpy() == pytest.approx(expected_T, rel=1e-12)
        assert not gradient_BT[row + 1].any(), "the reference point has no gradient"
    assert found.metrics["kto_divergence"].numpy() == pytest.approx([z] * 10)


def test_a_row_without_an_answer_does_not_pull_the_reference_point() -> None:
    batch, _, _ = random_inputs(0, 0.7)
    whole = select_kto(batch).max()
    mask_BT = np.vstack([batch.mask_BT, np.zeros((2, 4), dtype=bool)])
    more = [np.vstack([part, np.ones((2, 4))]) for part in (batch.logprobs_BT, batch.lots_BT)]
    assert batch.reference_logprobs_BT is not None
    with_empty = replace(
        batch,
        mask_BT=mask_BT,
        logprobs_BT=more[0],
        reference_logprobs_BT=np.vstack([batch.reference_logprobs_BT, np.zeros((2, 4))]),
    )
    assert select_kto(with_empty).max() == whole


@pytest.mark.parametrize("name", ["beta", "desirable_weight", "undesirable_weight"])
def test_factors_are_above_0(name: str) -> None:
    _, inputs, _ = random_inputs(0, 0.7)
    with pytest.raises(UserError, match=f"`{name}` of the policy loss kto is 0.0"):
        kto(inputs, **{name: 0.0})


def test_each_prompt_gets_the_answer_of_the_row_before() -> None:
    prompts, answers = ([2, 3], [4], [5, 6, 7]), ([10, 11], [12], [13, 14, 15])
    rows = [
        replace(data_row(place, np.array(prompt), np.array(answer)), weight=float(place + 1))
        for place, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    made = with_mismatched(rows, max_length=5)
    assert [row.side for row in made] == ["chosen", "rejected"] * 3
    assert [row.tokens.tolist() for row in made[::2]] == [row.tokens.tolist() for row in rows]
    assert [row.tokens.tolist() for row in made[1::2]] == [
        [2, 3, 13, 14, 15],
        [4, 10, 11],
        [5, 6, 7, 12],
    ]
    assert [row.response_length for row in made[1::2]] == [3, 2, 1]
    assert all(not row.advantages.any() and row.mask.all() for row in made[1::2])
    assert [row.position for row in made] == [0, 0, 1, 1, 2, 2]
    cut = with_mismatched(rows, max_length=4)
    assert cut[1].tokens.tolist() == [2, 3, 13, 14] and len(cut[1].mask) == 2
