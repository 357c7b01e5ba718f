"""Replays the experts that the engine chose, in the gates of a model that is trained.

Shapes: T tokens, k experts of each of them, E experts in all.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trinity.errors import UserError

GATE_SUFFIX = "TopKRouter"
"""End of the class names of transformers' gates that return (logits, weights, experts)."""
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class ExpertGate:
    """A gate of a model, which chooses experts."""

    module: nn.Module
    layer: int
    """Number of its layer among all layers of the model."""


class ExpertReplay:
    """Hooks that replace the experts chosen by a model's gates with the recorded ones.

    For tokens without a record the gate's choice stays. Weights are computed from the current
    logits of the recorded experts, so that the gate gets gradients. The record is kept until the
    next micro-batch, so that recomputed layers choose the same experts in the backward pass.

        replay = ExpertReplay(model)
        replay.routes_TLk = routes           # experts plus 1, 0 where there is no record; or None
        model(...)
    """

    def __init__(self, model: nn.Module) -> None:
        self.routes_TLk: torch.Tensor | None = None
        self._gates = gates_of(model)
        self._num_layers = _num_layers(model)
        self._checked: set[int] = set()
        for number, gate in enumerate(self._gates):
            gate.module.register_forward_hook(self._hook(number))

    @property
    def num_gates(self) -> int:
        """Number of gates that were found."""
        return len(self._gates)

    def _hook(self, number: int) -> Any:
        def replay(module: nn.Module, inputs: object, output: Any) -> Any:
            del inputs
            if self.routes_TLk is None:
                return output
            return self._replayed(number, module, output)

        return replay

    def _replayed(self, number: int, module: nn.Module, output: Any) -> tuple[torch.Tensor, ...]:
        logits_TE, weights_Tk, own_Tk = output
        routes_Tk = self._routes_of(number).to(own_Tk.device)
        if routes_Tk.shape != own_Tk.shape or int(routes_Tk.max()) > logits_TE.shape[-1]:
            raise UserError(
                f"recorded experts are of shape {list(routes_Tk.shape)} up to "
                f"{int(routes_Tk.max()) - 1}, and the model chooses {list(own_Tk.shape)} of "
                f"{logits_TE.shape[-1]}: they are another model's; leave out "
                "`algorithm.enable_router_replay`"
            )
        self._check_formula(number, module, output)
        experts_Tk = torch.where(routes_Tk > 0, routes_Tk.long() - 1, own_Tk)
        chosen_Tk = _weights(module, logits_TE, experts_Tk).to(weights_Tk.dtype)
        is_recorded_T1 = (routes_Tk > 0).any(-1, keepdim=True)
        return logits_TE, torch.where(is_recorded_T1, chosen_Tk, weights_Tk), experts_Tk

    def _routes_of(self, number: int) -> torch.Tensor:
        """Returns the record of a gate; it is of all layers, or of those with experts alone."""
        assert self.routes_TLk is not None
        recorded = self.routes_TLk.shape[1]
        if recorded == len(self._gates):
            return self.routes_TLk[:, number]
        if recorded != self._num_layers:
            raise UserError(
                f"experts of {recorded} layers are recorded, and the model has {self._num_layers}, "
                f"{len(self._gates)} with experts: they are another model's"
            )
        return self.routes_TLk[:, self._gates[number].layer]

    def _check_formula(self, number: int, module: nn.Module, output: Any) -> None:
        """Checks once that a gate's own weights are those of our formula."""
        if number in self._checked:
            return
        if not follows_softmax(module, output):
            raise UserError(
                f"experts cannot be replayed, as {type(module).__name__} weights them in a way "
                "that is not supported: leave out `algorithm.enable_router_replay`"
            )
        self._checked.add(number)


def follows_softmax(module: nn.Module, output: Any) -> bool:
    """Returns True if a gate's output is logits, weights by our formula, and experts."""
    if not isinstance(output, tuple) or len(output) != 3:
        return False
    logits_TE, weights_Tk, own_Tk = output
    with torch.no_grad():
        ours_Tk = _weights(module, logits_TE, own_Tk).float()
        return bool(torch.allclose(ours_Tk, weights_Tk.float(), atol=_TOLERANCE))


def _weights(module: nn.Module, logits_TE: torch.Tensor, experts_Tk: torch.Tensor) -> torch.Tensor:
    """Returns the softmax of all logits for these experts, to a sum of 1 where the gate does so."""
    weights_Tk = torch.softmax(logits_TE.float(), dim=-1).gather(-1, experts_Tk)
    if getattr(module, "norm_topk_prob", True):  # Mixtral's gates always do, and have no such key
        weights_Tk = weights_Tk / weights_Tk.sum(-1, keepdim=True)
    return weights_Tk


def gates_of(model: nn.Module) -> list[ExpertGate]:
    """Returns the gates of a model, layer by layer."""
    found = []
    for name, module in model.named_modules():
        layer = _LAYER.search(f".{name}.")
        if type(module).__name__.endswith(GATE_SUFFIX) and layer is not None:
            found.append(ExpertGate(module, int(layer[1])))
    return sorted(found, key=lambda gate: gate.layer)


def _num_layers(model: nn.Module) -> int:
    layers = [_LAYER.search(f".{name}.") for name, _ in model.named_modules()]
    return max((int(layer[1]) for layer in layers if layer is not None), default=-1) + 1
