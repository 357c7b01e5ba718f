"""Weights are identified by their tensors, not by the ranks or files that hold them."""

from dataclasses import replace

import pytest

from trinity.weights.identity import TensorHash, root_of

TENSORS = (
    TensorHash("model.a", "float32", (2, 3), "ab" * 32),
    TensorHash("model.b", "bfloat16", (4,), "cd" * 32),
)


def test_a_root_is_the_same_in_any_order() -> None:
    assert root_of(TENSORS) == root_of(reversed(TENSORS))
    assert root_of(TENSORS) != root_of(TENSORS[:1])


@pytest.mark.parametrize(
    "changed",
    [
        replace(TENSORS[0], name="model.c"),
        replace(TENSORS[0], dtype="bfloat16"),
        replace(TENSORS[0], shape=(3, 2)),
        replace(TENSORS[0], sha256="ab" * 31 + "aa"),
    ],
)
def test_a_root_changes_with_each_part_of_a_tensor(changed: TensorHash) -> None:
    assert root_of((changed, TENSORS[1])) != root_of(TENSORS)
