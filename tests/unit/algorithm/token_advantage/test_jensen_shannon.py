"""The advantage of `jensen_shannon` is the policy gradient of the divergence that it names."""

import math

import numpy as np
import pytest

from tests.unit.subtests import as_subtests
from trinity.algorithm.token_advantage.jensen_shannon import jensen_shannon
from trinity.algorithm.token_advantage.token_batch import FloatMatrix, TokenAdvantages, TokenBatch

NUM_WORDS = 6


def softmax(logits_V: np.ndarray) -> np.ndarray:
    powers_V: np.ndarray = np.exp(logits_V)
    probabilities_V: np.ndarray = powers_V / powers_V.sum()
    return probabilities_V


def divergence(logits_V: np.ndarray, teacher_V: np.ndarray, weight: float) -> float:
    """weight KL(teacher, m) + (1 - weight) KL(student, m), m = their mixture."""
    student_V = softmax(logits_V)
    mixture_V = weight * teacher_V + (1 - weight) * student_V
    of_teacher = (teacher_V * np.log(teacher_V / mixture_V)).sum()
    of_student = (student_V * np.log(student_V / mixture_V)).sum()
    return float(weight * of_teacher + (1 - weight) * of_student)


def every_word(logits_V: np.ndarray, teacher_V: np.ndarray, weight: float) -> TokenAdvantages:
    """One row that holds every word of the vocabulary once."""
    row: FloatMatrix = np.log(softmax(logits_V))[None]
    return jensen_shannon(
        TokenBatch(
            rewards_BT=np.zeros_like(row),
            mask_BT=np.ones(row.shape, np.bool_),
            lengths_B=np.array([NUM_WORDS]),
            groups_B=np.array([0]),
            logprobs_BT=row,
            rollout_logprobs_BT=row,
            teacher_logprobs_BT=np.log(teacher_V)[None],
        ),
        lambda_coef=weight,
    )


@as_subtests("weight", [0.1, 0.5, 0.9])
@as_subtests("seed", range(4))
def test_its_expected_gradient_is_minus_that_of_the_divergence(seed: int, weight: float) -> None:
    draw = np.random.default_rng(seed)
    logits_V, teacher_V = draw.normal(size=NUM_WORDS), softmax(2 * draw.normal(size=NUM_WORDS))
    student_V = softmax(logits_V)
    advantages_V = every_word(logits_V, teacher_V, weight).advantages_BT[0]
    gradient_V = student_V * (advantages_V - (student_V * advantages_V).sum())
    step = 1e-6
    for word in range(NUM_WORDS):
        nudge = step * np.eye(NUM_WORDS)[word]
        ahead = divergence(logits_V + nudge, teacher_V, weight)
        behind = divergence(logits_V - nudge, teacher_V, weight)
        assert gradient_V[word] == pytest.approx(-(ahead - behind) / (2 * step), abs=1e-8)


def test_a_student_like_its_teacher_is_left_alone() -> None:
    logits_V = np.arange(NUM_WORDS, dtype=np.float64)
    result = every_word(logits_V, softmax(logits_V), 0.5)
    assert np.abs(result.advantages_BT).max() < 1e-12
    assert result.metrics["jsd/mean"] == pytest.approx(0.0, abs=1e-12)


def test_discouragement_is_bounded_where_the_teacher_never_says_a_word() -> None:
    teacher_V = np.full(NUM_WORDS, 1e-300)
    teacher_V[0] = 1.0
    advantages_V = every_word(np.zeros(NUM_WORDS), teacher_V, 0.5).advantages_BT[0]
    assert advantages_V[1:] == pytest.approx(0.5 * math.log(0.5))


def test_its_metric_estimates_the_divergence_and_is_never_negative() -> None:
    draw = np.random.default_rng(0)
    logits_V, teacher_V = draw.normal(size=NUM_WORDS), softmax(draw.normal(size=NUM_WORDS))
    student_V = softmax(logits_V)
    words = draw.choice(NUM_WORDS, size=200_000, p=student_V)
    row = np.log(student_V)[words][None]
    batch = TokenBatch(
        rewards_BT=np.zeros_like(row),
        mask_BT=np.ones(row.shape, np.bool_),
        lengths_B=np.array([row.shape[1]]),
        groups_B=np.array([0]),
        logprobs_BT=row,
        rollout_logprobs_BT=row,
        teacher_logprobs_BT=np.log(teacher_V)[words][None],
    )
    estimate = jensen_shannon(batch).metrics["jsd/mean"] / row.shape[1]
    assert estimate == pytest.approx(divergence(logits_V, teacher_V, 0.5), rel=0.02)
