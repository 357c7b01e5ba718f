"""The divergence from a teacher's distribution, against a sum over words."""

import math
from itertools import pairwise

import pytest
import torch

from trinity.algorithm import teacher_divergence
from trinity.algorithm.teacher_divergence import (
    Direction,
    TeacherTokens,
    divergence,
    divergence_in_chunks,
)

DIRECTIONS: tuple[Direction, ...] = ("reverse", "forward")
NUM_TOKENS, NUM_WORDS = 7, 13


def logits(seed: int, num_words: int = NUM_WORDS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(NUM_TOKENS, num_words, generator=generator, dtype=torch.float64)


def slow(policy: list[float], teacher: list[float], direction: Direction) -> float:
    """One token, one word at a time, from probabilities."""
    p, q = (policy, teacher) if direction == "reverse" else (teacher, policy)
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("top_k", [0, 4, NUM_WORDS])
def test_it_is_the_sum_over_words_where_those_not_told_are_one(
    direction: Direction, top_k: int
) -> None:
    own, told = logits(1).softmax(-1), logits(2).softmax(-1)
    found = divergence(own.log(), TeacherTokens.of(told.log(), top_k=top_k), direction)
    for token in range(NUM_TOKENS):
        policy, teacher = own[token].tolist(), told[token].tolist()
        if 0 < top_k < NUM_WORDS:
            words = sorted(range(NUM_WORDS), key=lambda word: -teacher[word])[:top_k]
            policy, teacher = (
                [of[word] for word in words] + [1 - sum(of[word] for word in words)]
                for of in (policy, teacher)
            )
        assert found[token].item() == pytest.approx(slow(policy, teacher, direction), rel=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fewer_words_tell_less_and_never_less_than_nothing(direction: Direction) -> None:
    own = logits(1).log_softmax(-1)
    found = [
        divergence(own, TeacherTokens.of(logits(2), top_k=top_k), direction)
        for top_k in (1, 3, 6, 0)
    ]
    assert (found[0] > 0).all()
    for fewer, more in pairwise(found):
        assert (fewer <= more + 1e-9).all()


def test_the_directions_differ_and_an_equal_teacher_is_at_no_distance() -> None:
    own = logits(1).log_softmax(-1)
    reverse, forward = (
        divergence(own, TeacherTokens.of(logits(2), top_k=0), direction) for direction in DIRECTIONS
    )
    assert not torch.allclose(reverse, forward)
    for direction in DIRECTIONS:
        for top_k in (0, 5):
            same = divergence(own, TeacherTokens.of(logits(1), top_k=top_k), direction)
            assert same.abs().max() < 1e-9


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("top_k", [0, 4])
def test_its_gradient_is_that_of_differences(direction: Direction, top_k: int) -> None:
    teacher = TeacherTokens.of(logits(2), top_k=top_k)
    torch.autograd.gradcheck(
        lambda given: divergence(given.log_softmax(-1), teacher, direction),
        logits(1).requires_grad_(),
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("top_k", [0, 4])
def test_chunks_give_the_same_bits(direction: Direction, top_k: int) -> None:
    teacher = TeacherTokens.of(logits(2).float(), top_k=top_k)
    given = [logits(1).float().requires_grad_() for _ in range(2)]
    whole = divergence(given[0].log_softmax(-1), teacher, direction)
    parts = divergence_in_chunks(given[1].log_softmax(-1), teacher, direction, size=3)
    assert torch.equal(whole, parts)
    for values in (whole, parts):
        (values * torch.arange(NUM_TOKENS)).sum().backward()
    assert given[0].grad is not None
    assert given[1].grad is not None
    torch.testing.assert_close(given[0].grad, given[1].grad)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_words_that_one_of_the_two_does_not_have_are_left_out(direction: Direction) -> None:
    """Models of one family are padded to vocabularies of several sizes."""
    wide, narrow = logits(1, NUM_WORDS + 3), logits(2)
    expected = divergence(
        wide[:, :NUM_WORDS].log_softmax(-1), TeacherTokens.of(narrow, top_k=0), direction
    )
    found = divergence(wide.log_softmax(-1), TeacherTokens.of(narrow, top_k=0), direction)
    torch.testing.assert_close(found, expected)
    back = divergence(narrow.log_softmax(-1), TeacherTokens.of(wide, top_k=0), direction)
    assert back.isfinite().all()
    few = divergence(narrow.log_softmax(-1), TeacherTokens.of(wide, top_k=NUM_WORDS), direction)
    assert few.isfinite().all()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("top_k", [0, 4])
def test_a_word_that_one_never_says_gives_no_nan(direction: Direction, top_k: int) -> None:
    own, told = logits(1).requires_grad_(), logits(2)
    told[:, 3] = -math.inf
    found = divergence(own.log_softmax(-1), TeacherTokens.of(told, top_k=top_k), direction)
    found.sum().backward()
    assert found.isfinite().all()
    assert own.grad is not None
    assert own.grad.isfinite().all()


def test_a_sure_teacher_leaves_nothing_beside_its_words() -> None:
    told = torch.zeros(1, NUM_WORDS)
    told[0, 2] = 100.0
    own = torch.zeros(1, NUM_WORDS, requires_grad=True)
    teacher = TeacherTokens.of(told, top_k=1)
    found = divergence(own.log_softmax(-1), teacher, "forward")
    assert found.item() == pytest.approx(math.log(NUM_WORDS), abs=1e-4)
    found.backward()
    assert own.grad is not None
    assert own.grad[0, 2] < 0
    assert teacher_divergence.LEAST_REST < 1e-6
