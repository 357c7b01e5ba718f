"""Weights are identified by their tensors, not by the ranks or files that hold them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from blake3 import blake3

from trinity.weights.identity import HASHES, TensorHash, WeightsRoots, roots_of, same_weights
from trinity.weights.tensors import RootDigest

TENSORS = (
    TensorHash("model.a", "float32", (2, 3), "ab" * 32),
    TensorHash("model.b", "bfloat16", (4,), "cd" * 32),
)


def test_a_root_is_the_same_in_any_order() -> None:
    assert roots_of(TENSORS) == roots_of(reversed(TENSORS))
    assert roots_of(TENSORS) != roots_of(TENSORS[:1])


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
    assert roots_of((changed, TENSORS[1])) != roots_of(TENSORS)


def test_roots_are_those_of_a_plain_loop_and_compared_by_the_newest_common_hash() -> None:
    content = np.arange(4, dtype="<f4")
    digest = RootDigest("sha256", "blake3")
    digest.add_tensor("model.a", torch.from_numpy(content))
    expected = []
    for number, make in enumerate((HASHES["sha256"], blake3), 1):
        line = f'["model.a", "float32", [4], "{make(content.tobytes()).hexdigest()}"]\n'
        expected.append(make(f"trinity weights root v{number}\n{line}".encode()).digest())
    both = digest.roots()
    assert both == WeightsRoots(*expected)
    old, new = WeightsRoots(expected[0]), WeightsRoots(weights_blake3=expected[1])
    assert same_weights(both, old) and same_weights(both, new)
    assert not same_weights(old, new), "nothing is known"
    assert not same_weights(both, replace(both, weights_blake3=bytes(32))), "the newest decides"
    assert not same_weights(WeightsRoots(), WeightsRoots())
