"""Every algorithm, term and path of the learner has the loss and gradient of a plain loop.

The loop computes single rows with eager attention in float64 and has no code of ours.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.integration.trainer.oracle_bench import Bench
from tests.integration.trainer.oracle_cases import (
    BY_ROW,
    CASES,
    OF_PATHS,
    OURS,
    PATHS,
    TERM_CASES,
    grpo_with,
)
from tests.support import oracle
from tests.support.oracle import advantages
from tests.support.oracle.step import Models
from tests.unit.trainer.builders import save_tiny_mixture
from trinity.algorithm.types import ALGORITHM_TYPES


def test_the_oracle_loads_nothing_of_ours() -> None:
    """Formulas that come from the product would agree with it."""
    ours = r"^\s*(from|import) (trinity|services|verl|tests(?!\.support\.oracle))\b"
    for file in Path(oracle.__file__).parent.glob("*.py"):
        assert not re.search(ours, file.read_text(), re.MULTILINE), file


def test_every_algorithm_has_a_case() -> None:
    assert CASES.keys() == set(ALGORITHM_TYPES.builtins)


@pytest.mark.parametrize("name", CASES)
def test_an_algorithm_has_the_loss_and_gradient_of_its_formula(bench: Bench, name: str) -> None:
    bench.check(name, CASES[name], {})


@pytest.mark.parametrize("name", TERM_CASES)
def test_a_term_has_the_loss_and_gradient_of_its_formula(bench: Bench, name: str) -> None:
    bench.check(*TERM_CASES[name], PATHS["cut"])


@pytest.mark.parametrize("name", OF_PATHS)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_computes_the_same_numbers(
    bench: Bench, path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.trainer.backend.token_head.CHUNK_TOKENS", 7)
    bench.check(name, CASES[name], PATHS[path])


@pytest.mark.parametrize("path", ["padded", "cut"])
@pytest.mark.parametrize("name", ["grpo", "grpo_distill", "vocabulary_distill", "sft", "dpo"])
def test_a_batch_of_one_trained_token_has_the_same_numbers(
    bench: Bench, name: str, path: str
) -> None:
    """Counts of tokens, rows and tasks are as small as they can be."""
    case = CASES[name]
    rows = bench.rows[case.kind][: 2 if case.kind == "pairs" else 1]
    small = [replace(r, mask=[False] * (len(r.mask) - 1) + [True], reward=1.0) for r in rows]
    replace(bench, rows={case.kind: small}, known={}).check(name, case, PATHS[path])


@pytest.mark.parametrize(
    ("path", "balance", "z"), [("padded", 0.5, 0.1), ("cut", 0.5, 0), ("cut", 0, 0.1)]
)
def test_gates_have_the_gradients_of_their_own_losses(
    bench: Bench, path: str, balance: float, z: float, tmp_path: Path
) -> None:
    mixture = save_tiny_mixture(tmp_path / "mixture")
    models = Models(policy=mixture, reference=mixture)
    coefs = {"router_aux_loss_coef": balance, "router_z_loss_coef": z}
    case = grpo_with(OURS(balance_coef=balance, z_coef=z), **coefs)
    replace(bench, models=models, known={}).check("grpo", case, PATHS[path])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("grpo", {"kl_coef": 0.0}),
        ("grpo", {"entropy_coef": 0.0}),
        ("grpo", {"mode": BY_ROW}),
        ("ppo", {"returns": partial(advantages.returns, gamma=1, lam=0.9)}),
        ("dr_grpo", {"longest": 12}),
    ],
)
def test_a_wrong_formula_is_found(bench: Bench, name: str, wrong: dict[str, object]) -> None:
    """The control: the comparison sees one term."""
    case = CASES[name]
    changed = replace(case, objective=replace(case.objective, **wrong))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="Not equal"):
        bench.check(name, changed, {})
