"""Packed rows in half precision on a GPU, where torch's own kernel computes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU")

LENGTHS = (3, 3, 17, 64, 129, 200)
HEAD_SIZE = 64
TOLERANCE = 2e-2
"""Of bfloat16, relative to the largest element."""


@dataclass(frozen=True, slots=True)
class Attended:
    """Outputs, and the gradients of queries, keys and values."""

    output_THD: torch.Tensor
    gradients: tuple[torch.Tensor, ...]


class CausalLayer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A layer, as far as the function looks at it."""

    is_causal = True


def tensors_of(num_heads: int, num_kv_heads: int) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(7)
    return [
        torch.randn(1, heads, sum(LENGTHS), HEAD_SIZE, device="cuda", generator=generator)
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    ]


def attended(
    tensors: Sequence[torch.Tensor],
    dtype: torch.dtype,
    *,
    lengths: Sequence[int] = LENGTHS,
    window: int | None = None,
) -> Attended:
    from services.trainer.backend.packed_attention import RUNS_ARGUMENT, attend, runs_of

    inputs = [tensor.to(dtype).requires_grad_() for tensor in tensors]
    runs: dict[str, Any] = {RUNS_ARGUMENT: runs_of(lengths)}
    query, key, value = inputs
    output, _ = attend(
        CausalLayer(), query, key, value, None, None, 0.0, sliding_window=window, **runs
    )
    weights = torch.linspace(-1, 1, output.numel(), device="cuda").view_as(output)
    gradients = torch.autograd.grad((output * weights.to(dtype)).sum(), inputs)
    return Attended(output[0].float(), tuple(gradient.float() for gradient in gradients))


def distance(left: Attended, right: Attended) -> float:
    """Returns the largest difference relative to an array's largest element."""
    pairs = zip(
        (left.output_THD, *left.gradients), (right.output_THD, *right.gradients), strict=True
    )
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


@pytest.mark.parametrize("num_kv_heads", [4, 1])
@pytest.mark.parametrize("window", [None, 16])
def test_the_kernel_computes_each_row_alone(num_kv_heads: int, window: int | None) -> None:
    from services.trainer.backend.packed_attention import _varlen_kernel

    assert _varlen_kernel() is not None, "torch's kernel is used"
    tensors = tensors_of(4, num_kv_heads)
    exact = attended(tensors, torch.float32, window=window)
    found = attended(tensors, torch.bfloat16, window=window)
    assert distance(found, exact) < TOLERANCE
    mixed = attended(tensors, torch.bfloat16, lengths=(sum(LENGTHS),), window=window)
    assert distance(mixed, exact) > 5 * TOLERANCE, "the control: rows that see their neighbours"
