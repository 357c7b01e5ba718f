"""Defects that are put into the learner on purpose are found by the comparison with the oracle."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.trainer.oracle_bench import Bench
from tests.integration.trainer.oracle_cases import CASES, PATHS


def without_entropys_gradient(sound: Callable[..., Any]) -> Callable[..., Any]:
    def outputs(*args: Any) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = sound(*args)
        return {**found, "entropy": found["entropy"].detach()}

    return outputs


def with_rows_alike(**changes: float) -> Callable[..., Any]:
    """Of the builder of micro-batches: all rows have one weight, or one temperature."""

    def broken(sound: Callable[..., Any]) -> Callable[..., Any]:
        def tensors(*args: Any) -> dict[str, torch.Tensor]:
            made: dict[str, torch.Tensor] = sound(*args)
            return made | {k: torch.full_like(made[k], v) for k, v in changes.items()}

        return tensors

    return broken


def with_columns(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Any]:
    """Of the actor's matrices: another one of this name."""

    def broken(sound: Callable[..., Any]) -> Callable[..., Any]:
        def matrices(*args: Any) -> dict[str, np.ndarray]:
            made: dict[str, np.ndarray] = sound(*args)
            return made | {name: change(made[name])}

        return matrices

    return broken


def doubled(sound: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: 2 * sound(*args, **kwargs)


def detached(sound: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: sound(*args, **kwargs).detach()


def detached_values(sound: Callable[..., Any]) -> Callable[..., Any]:
    def loss(inputs: Any, **_: Any) -> Any:
        return sound(replace(inputs, values_BT=inputs.values_BT.detach() + 0 * inputs.values_BT))

    return loss


def at_the_first_token(sound: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: np.flip(sound(*args), axis=-1)


def of_all_rows(sound: Callable[..., Any]) -> Callable[..., Any]:
    def totals(self: Any, mask_BT: np.ndarray, longest: int) -> Any:
        return sound(self, np.ones_like(mask_BT), longest)

    return totals


LEARNER = "services.trainer.learner"
BUILDER = f"{LEARNER}.verl_calls.MicroBatchBuilder._row_tensors"
MATRICES = f"{LEARNER}.actor._matrices"
DEFECTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "entropy without gradient": (
        "grpo",
        "services.trainer.backend.row_engine.token_outputs",
        without_entropys_gradient,
    ),
    "weights of rows lost": ("grpo", BUILDER, with_rows_alike(row_weights=1.0)),
    "weights of pairs lost": ("dpo", BUILDER, with_rows_alike(row_weights=1.0)),
    "temperature lost": ("grpo", BUILDER, with_rows_alike(temperature=1.0)),
    "old log-probabilities shifted": (
        "grpo",
        MATRICES,
        with_columns("old_logprobs", partial(np.roll, shift=1, axis=1)),
    ),
    "mask shifted": (
        "sft",
        MATRICES,
        with_columns("loss_mask", partial(np.roll, shift=1, axis=1)),
    ),
    "advantages negated": ("grpo", MATRICES, with_columns("advantages", np.negative)),
    "divergence without gradient": ("grpo", f"{LEARNER}.loss.BatchLoss._divergence", detached),
    "divergence twice": ("grpo", f"{LEARNER}.loss.BatchLoss._divergence", doubled),
    "values without gradient": ("ppo", f"{LEARNER}.roles.value_loss", detached_values),
    "reward at another token": (
        "reinforceplusplus",
        f"{LEARNER}.advantages.RolloutRows.rewards",
        at_the_first_token,
    ),
    "means over padding": (
        "grpo",
        f"{LEARNER}.prepared_batch.PreparedBatch.totals",
        of_all_rows,
    ),
    "reference is the policy": (
        "kto",
        f"{LEARNER}.roles.Reference.logprobs",
        lambda sound: lambda *args: 0 * sound(*args),
    ),
}


OF_PATHS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "cut": (
        "grpo",
        "services.trainer.backend.packed_attention.runs_of",
        lambda _: lambda lengths: ((sum(lengths), 1),),
    ),
    "shared prompts": (
        "grpo",
        "services.trainer.backend.shared_prompts.SharedPrompts.of",
        lambda sound: lambda *tensors: replace(sound(*tensors), repeats=()),
    ),
    "chunked head": ("grpo", BUILDER, with_rows_alike(temperature=1.0)),
}
"""A row that sees its neighbour, a prompt without the gradients of others, one temperature."""


@pytest.mark.parametrize("path", OF_PATHS)
def test_a_defect_of_a_path_is_found(
    bench: Bench, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, target, broken = OF_PATHS[path]
    _plant(target, broken, monkeypatch)
    with pytest.raises(AssertionError, match="Not equal"):
        bench.check(name, CASES[name], PATHS[path])


def _plant(target: str, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute = target.rsplit(".", 1)
    place = resolve_name(owner)
    monkeypatch.setattr(place, attribute, broken(getattr(place, attribute)))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(
    bench: Bench, defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, target, broken = DEFECTS[defect]
    _plant(target, broken, monkeypatch)
    with pytest.raises(AssertionError, match=r"Not equal|gradient of nothing"):
        bench.check(name, CASES[name], {})
