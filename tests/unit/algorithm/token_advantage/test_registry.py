"""Names, what each needs, and what a person reads who asks for what cannot be."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.algorithm.token_advantage.batches import random_batch
from tests.unit.subtests import as_subtests
from trinity.algorithm.token_advantage import NEEDS, TOKEN_ADVANTAGES, needs_of
from trinity.algorithm.token_advantage.need import Need
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.config.plan.trials import probe_advantage
from trinity.errors import UserError

FIELDS: dict[Need, str] = {
    "values": "values_BT",
    "entropies": "entropies_BT",
    "collision": "collision_BT",
    "discriminator": "discriminator_BT",
    "teacher": "teacher_logprobs_BT",
    "reference": "reference_logprobs_BT",
    "baselines": "baselines_B",
    "reward_parts": "reward_parts",
}


def without(batch: TokenBatch, needs: set[Need]) -> TokenBatch:
    changes: dict[str, Any] = {FIELDS[need]: None for need in needs}
    return replace(batch, **changes)


@as_subtests("name", sorted(TOKEN_ADVANTAGES.builtins))
def test_what_is_declared_is_enough(name: str) -> None:
    batch = without(random_batch(0), FIELDS.keys() - needs_of(name))
    TOKEN_ADVANTAGES.get(name)(batch)


def test_arguments_of_every_advantage_can_be_tried_before_a_run() -> None:
    for name in sorted(TOKEN_ADVANTAGES.builtins):
        probe_advantage(SimpleNamespace(advantage_fn=name, advantage_fn_args={}))  # type: ignore[arg-type]


@as_subtests(("name", "need"), [(n, one) for n in NEEDS for one in sorted(needs_of(n))])
def test_what_is_declared_and_missing_is_named(name: str, need: Need) -> None:
    with pytest.raises(UserError, match=r"algorithm\.advantage_fn needs"):
        TOKEN_ADVANTAGES.get(name)(without(random_batch(0), {need}))


def test_only_functions_that_exist_have_needs() -> None:
    assert NEEDS.keys() <= TOKEN_ADVANTAGES.builtins.keys()
    assert needs_of("grpo_verl") == frozenset()


@as_subtests(
    ("name", "args"),
    [
        ("ppo", {"gamma": 1.5}),
        ("ppo_unmasked", {"lam": -0.1}),
        ("reinforceplusplus", {"gamma": 2.0}),
        ("opmd_verl", {"tau": 0.0}),
        ("gpg", {"f_norm": 0.0}),
        ("jsd", {"lambda_coef": 1.1}),
        ("jensen_shannon", {"lambda_coef": 1.0}),
        ("gfpo", {"num_kept": 0}),
        ("gfpo", {"metric": "speed"}),
        ("grpo_distill", {"kl_coef": -1.0}),
        ("gvpo", {"beta": 0.0}),
        ("kto", {"beta": 0.0}),
        ("kto", {"undesirable_weight": -1.0}),
        ("online_dpo", {"beta": -0.1}),
        ("online_dpo", {"label_smoothing": 0.5}),
        ("pf_ppo", {"reweight_method": "best"}),
        ("pf_ppo", {"weight_pow": -1.0}),
        ("vapo", {"alpha": 0.0}),
        ("vapo", {"critic_lam": 1.1}),
        ("vapo", {"lam": -0.5}),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(name: str, args: dict[str, object]) -> None:
    with pytest.raises(UserError, match=rf"advantage_fn_args\.{next(iter(args))} is"):
        TOKEN_ADVANTAGES.get(name)(random_batch(0), **args)


def test_importing_every_function_brings_no_torch() -> None:
    code = (
        "import sys; from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES as T; "
        "[T.get(name) for name in T.names()]; "
        "import trinity.algorithm.rollout_correction, trinity.algorithm.kl.penalty, "
        "trinity.algorithm.kl.controller; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
