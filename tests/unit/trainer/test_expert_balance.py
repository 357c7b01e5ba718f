"""Gates of a mixture get the gradients of their own two losses, however a batch is computed."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from tensordict import TensorDict

from services.trainer.backend.expert_balance import (
    BALANCE,
    NO_ROW,
    ROUTER_Z_LOSS,
    BalanceRows,
    BalanceShare,
    ExpertBalance,
    rows_of_tokens,
    trained_rows,
)
from tests.unit.trainer.test_expert_replay import KINDS, TOKENS, model_of
from trinity.errors import UserError

AUX, Z_COEF, NUM_TOKENS = 0.5, 0.25, 40.0
ROWS = torch.tensor([0] * 6 + [1] * 5 + [NO_ROW] * 3)
"""Two rows, and three tokens of padding."""
Gradients = dict[str, torch.Tensor]


def balanced(model: torch.nn.Module, scale: float = 1.0) -> ExpertBalance:
    balance = ExpertBalance(model, aux_coef=AUX, z_coef=Z_COEF)
    balance.share = BalanceShare(num_tokens=NUM_TOKENS, scale=scale)
    balance.begin(BalanceRows(rows_T=ROWS, lengths_N=torch.tensor([6, 5]), group=None))
    return balance


def gradients(model: torch.nn.Module, factor: float = 1.0) -> Gradients:
    """Gradients of the sum of the logits times a factor: at 0 those that the gates add."""
    model.zero_grad()
    (model(input_ids=TOKENS, use_cache=False).logits.sum() * factor).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def written_out(logits: Sequence[torch.Tensor], num_chosen: int = 2) -> tuple[torch.Tensor, ...]:
    """Both losses of a batch, as means over the gates, from the gates' logits."""
    balance, squares = torch.zeros(()), torch.zeros(())
    for gate in logits:
        for row in (0, 1):
            own = gate[row == ROWS]
            chosen = own.topk(num_chosen).indices
            shares = torch.bincount(chosen.flatten(), minlength=5) / chosen.numel()
            balance = balance + len(own) * 5 * (shares * own.softmax(-1).mean(0)).sum()
            squares = squares + own.logsumexp(-1).square().sum()
    return balance / NUM_TOKENS, squares / NUM_TOKENS


def logits_of(model: torch.nn.Module) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    gates = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
    hooks = [g.register_forward_hook(lambda _m, _i, out: found.append(out[0])) for g in gates]
    model(input_ids=TOKENS, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_gate_gets_the_gradient_of_both_losses(kind: str) -> None:
    model = model_of(kind).train()
    losses = written_out(logits_of(model))
    model.zero_grad()
    (AUX * losses[0] + Z_COEF * losses[1]).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    balance = balanced(model)
    found = gradients(model, factor=0.0)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    told = balance.take()
    assert float(told[BALANCE]) == pytest.approx(losses[0].item() / 3, rel=1e-5)
    assert float(told[ROUTER_Z_LOSS]) == pytest.approx(losses[1].item() / 3, rel=1e-5)


def test_layers_that_are_computed_again_add_theirs_once() -> None:
    model = model_of().train()
    balance = balanced(model, scale=2.0)
    plain = gradients(model)
    told = balance.take()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    balance.begin(balance.rows)
    again = gradients(model)
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient, msg=name)
    torch.testing.assert_close(balance.take(), told)
    balance.share = None
    without = gradients(model)
    gate = "model.layers.0.mlp.gate.weight"
    assert not torch.allclose(without[gate], plain[gate], atol=1e-4), "the control"
    balance.begin(None)
    assert balance.take() == {}


def test_passes_without_gradients_tell_nothing() -> None:
    model = model_of()
    balance = balanced(model)
    with torch.no_grad():
        model(input_ids=TOKENS, use_cache=False)
    assert balance.take() == {}


def test_even_gates_are_at_one() -> None:
    model = model_of(num_experts_per_tok=5)
    balance = balanced(model)
    gradients(model)
    assert float(balance.take()[BALANCE]) == pytest.approx(11 / NUM_TOKENS, rel=1e-5)


def test_padding_and_rows_of_which_nothing_is_trained_do_not_count() -> None:
    lengths = torch.tensor([3, 1, 2])
    for trained in product((True, False), repeat=3):
        mask_NC = torch.tensor([[False, is_trained] for is_trained in trained])
        tokens_NL = torch.zeros(3, 3, dtype=torch.int64)
        batch = {"input_ids": tokens_NL, "lengths": lengths, "loss_mask": mask_NC}
        data = TensorDict(batch, batch_size=[3])
        rows_T = rows_of_tokens(data)
        assert rows_T.tolist() == [0, 0, 0, 1, NO_ROW, NO_ROW, 2, 2, NO_ROW]
        expected = [row if row >= 0 and trained[row] else NO_ROW for row in rows_T.tolist()]
        assert trained_rows(rows_T, data).tolist() == expected


def test_a_dense_model_and_gates_of_their_own_way_are_refused() -> None:
    with pytest.raises(UserError, match="this model has no such gates"):
        ExpertBalance(torch.nn.Linear(2, 2), aux_coef=1.0, z_coef=0.0)
    model = model_of()
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(lambda _m, _i, out: (out[0], out[1] * 0.5, out[2]))
    balanced(model)
    with pytest.raises(UserError, match="weights experts in a way that is not supported"):
        gradients(model)
