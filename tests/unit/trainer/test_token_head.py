"""The head that computes outputs of tokens in chunks, on a layer alone."""

import pytest
import torch
from torch import nn

from services.trainer.backend import token_head
from services.trainer.backend.token_head import (
    HeadTask,
    OutputRequest,
    TokenHead,
    token_outputs,
)

ALL = OutputRequest(entropy_gradient=True, sum_pi_squared=True, discriminator=True)


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


def test_a_model_that_changes_its_logits_is_noticed() -> None:
    layer = nn.Linear(8, 11)
    head = TokenHead(layer, recomputes=False)
    head.task = task_of(3)
    assert head.take(layer(torch.randn(3, 8)).tanh()) is None
    assert layer(torch.randn(3, 8)).shape == (3, 11), "without a task it is the layer itself"
