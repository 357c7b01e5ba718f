"""The head computes outputs of tokens in chunks, and compares them with a teacher."""

import math
from unittest import mock

import pytest
import torch
from torch import nn

from services.trainer.backend import token_head
from services.trainer.backend.token_head import (
    DIVERGENCE,
    HeadTask,
    OutputRequest,
    TokenHead,
    token_outputs,
)
from trinity.algorithm.teacher_divergence import Direction, TeacherTokens

ALL = OutputRequest(entropy_gradient=True, sum_pi_squared=True, discriminator=True)
NUM_TOKENS, NUM_WORDS = 10, 11


def task_of(num_tokens: int) -> HeadTask:
    return HeadTask(
        labels_S=torch.arange(num_tokens) % 11,
        temperatures_S=0.5 + torch.arange(num_tokens) % 3,
        request=ALL,
    )


@pytest.mark.parametrize("recomputes", [True, False])
def test_chunks_give_what_all_logits_give(
    recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_head, "CHUNK_TOKENS", 4)
    torch.manual_seed(0)
    layer, hidden = nn.Linear(8, 11), torch.randn(1, 10, 8, requires_grad=True)
    task = task_of(10)
    logits = layer(hidden)[0].float() / task.temperatures_S[:, None]
    expected = token_outputs(logits, task.labels_S, ALL)
    (expected["log_probs"].sum() + expected["entropy"].square().sum()).backward()
    wanted = (layer.weight.grad.clone(), hidden.grad.clone())
    layer.weight.grad = hidden.grad = None
    head = TokenHead(layer, recomputes=recomputes)
    head.task = task
    found = head.take(layer(hidden))
    assert found is not None
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, msg=name)
    (found["log_probs"].sum() + found["entropy"].square().sum()).backward()
    torch.testing.assert_close(layer.weight.grad, wanted[0])
    torch.testing.assert_close(hidden.grad, wanted[1])


def test_figures_of_a_distribution_are_sums_over_its_words() -> None:
    torch.manual_seed(1)
    logits, labels = torch.randn(3, 11), [2, 0, 10]
    found = token_outputs(logits, torch.tensor(labels), ALL)
    for token, weights in enumerate(logits.double().exp().tolist()):
        probs = [weight / sum(weights) for weight in weights]
        entropy = -sum(p * math.log(p) for p in probs)
        expected = {
            "log_probs": math.log(probs[labels[token]]),
            "entropy": entropy,
            "sum_pi_squared": sum(p * p for p in probs),
            "discriminator": sum(p * p * (entropy + math.log(p)) for p in probs),
        }
        told = {name: values[token].item() for name, values in found.items()}
        assert told == pytest.approx(expected, rel=1e-5)


def test_an_entropy_that_no_term_needs_keeps_nothing_for_the_pass_back() -> None:
    logits = torch.randn(3, 11, requires_grad=True)
    found = token_outputs(logits, torch.tensor([2, 0, 10]), OutputRequest())
    assert found["log_probs"].requires_grad
    assert not found["entropy"].requires_grad


def test_a_model_that_changes_its_logits_is_noticed() -> None:
    layer = nn.Linear(8, 11)
    head = TokenHead(layer, recomputes=False)
    head.task = task_of(3)
    assert head.take(layer(torch.randn(3, 8)).tanh()) is None
    assert layer(torch.randn(3, 8)).shape == (3, 11), "without a task it is the layer itself"


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
