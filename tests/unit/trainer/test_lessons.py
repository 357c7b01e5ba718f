"""The policy is compared with what a teacher shows at the same token, at the same temperature."""

import math
from unittest import mock

import pytest
import torch
from torch import nn

from services.trainer.backend import token_head
from services.trainer.backend.token_head import DIVERGENCE, HeadTask, OutputRequest, TokenHead
from trinity.algorithm.teacher_divergence import Direction, TeacherTokens

NUM_TOKENS, NUM_WORDS = 10, 11


def temperatures() -> torch.Tensor:
    return 0.5 + torch.arange(NUM_TOKENS) % 3


def teacher_logits() -> torch.Tensor:
    return 2 * torch.randn(
        NUM_TOKENS, NUM_WORDS, generator=torch.Generator().manual_seed(2), dtype=torch.float32
    )


def slow(own: torch.Tensor, told: torch.Tensor, direction: Direction) -> list[float]:
    """Each token by itself, word by word, from logits that know no temperature."""
    found = []
    for own_V, told_V, temperature in zip(own, told, temperatures().tolist(), strict=True):
        pair = [(logits.double() / temperature).softmax(-1).tolist() for logits in (own_V, told_V)]
        first, second = pair if direction == "reverse" else pair[::-1]
        found.append(sum(a * math.log(a / b) for a, b in zip(first, second, strict=True)))
    return found


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_each_token_is_compared_with_what_the_teacher_shows_there(direction: Direction) -> None:
    torch.manual_seed(0)
    layer, hidden_SD = nn.Linear(8, NUM_WORDS), torch.randn(NUM_TOKENS, 8)
    expected = slow(layer(hidden_SD).detach(), teacher_logits(), direction)
    shown = TeacherTokens.of(teacher_logits() / temperatures()[:, None], top_k=0)
    head = TokenHead(layer, recomputes=False)
    head.task = HeadTask(
        labels_S=torch.arange(NUM_TOKENS),
        temperatures_S=temperatures(),
        request=OutputRequest(direction=direction),
        teacher=shown,
    )
    with mock.patch.object(token_head, "CHUNK_TOKENS", 4):
        found = head.take(layer(hidden_SD))
    assert found is not None
    assert found[DIVERGENCE].tolist() == pytest.approx(expected, rel=1e-4)


def test_without_a_teacher_nothing_is_compared() -> None:
    layer = nn.Linear(8, NUM_WORDS)
    head = TokenHead(layer, recomputes=False)
    head.task = HeadTask(
        labels_S=torch.arange(3), temperatures_S=torch.ones(3), request=OutputRequest()
    )
    found = head.take(layer(torch.randn(3, 8)))
    assert found is not None and DIVERGENCE not in found
