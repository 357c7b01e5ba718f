"""A head in chunks, computed again in the backward pass, changes memory and nothing else."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.trainer.learners import Build, assert_close, gradients_of, stepped
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

ROWS = random_batch(16, seed=5)
BATCH = replace(
    ROWS,
    rows=[replace(row, temperature=0.5 + 0.25 * (row.position % 4)) for row in ROWS.rows],
)
ALGORITHM: Mapping[str, object] = {
    "algorithm_type": "grpo",
    "repeat_times": 8,
    "kl_loss_fn": "k2",
    "advantage_fn": "clipv",
    "entropy_loss_fn_args": {"entropy_coef": 0.1},
}
KEYS = ("use_fused_kernels", "entropy_from_logits_with_chunking", "entropy_checkpointing")


def plan_of(model: Path, *, packed: bool = True, **trainer: object) -> StagePlan:
    return make_plan(model, ALGORITHM, {"use_remove_padding": packed, **trainer})


@pytest.fixture
def _small_chunks(ranks: object, monkeypatch: pytest.MonkeyPatch) -> None:
    del ranks  # imports verl first
    monkeypatch.setattr("services.trainer.backend.token_head.CHUNK_TOKENS", 7)


@pytest.mark.usefixtures("_small_chunks")
@pytest.mark.parametrize("key", KEYS)
def test_each_key_computes_the_same_gradients_with_a_temperature_for_each_row(
    learner_of: Build, model: Path, key: str
) -> None:
    whole = gradients_of(learner_of(plan_of(model)), BATCH)
    learner = learner_of(plan_of(model, **{key: True}))
    head = learner._roles.actor.worker.engine._head
    sizes = []
    project = head._project

    def watched(hidden: object) -> object:
        sizes.append(hidden.shape[0])  # type: ignore[attr-defined]
        return project(hidden)

    head._project = watched
    assert_close(whole, gradients_of(learner, BATCH))
    assert max(sizes) == 7, "all logits never exist"
    padded = learner_of(plan_of(model, packed=False, **{key: True}))
    assert_close(whole, gradients_of(padded, BATCH))


def test_figures_are_those_of_a_whole_head(learner_of: Build, model: Path) -> None:
    whole, chunked = (
        stepped(learner_of(plan_of(model, use_fused_kernels=is_chunked)), BATCH)
        for is_chunked in (False, True)
    )
    for name in ("actor/loss", "actor/entropy", "actor/kl_loss", "actor/grad_norm"):
        assert chunked[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-6), name


@pytest.mark.usefixtures("_small_chunks")
def test_a_model_with_an_adapter_has_its_head_in_chunks_too(learner_of: Build, model: Path) -> None:
    adapter = {"lora_configs": [{"lora_rank": 4, "lora_alpha": 8}]}
    algorithm = {"algorithm_type": "grpo", "repeat_times": 8, "kl_loss_fn": "k2"}
    whole, chunked = (
        make_plan(model, algorithm, {"use_fused_kernels": is_chunked}, adapter)
        for is_chunked in (False, True)
    )
    assert_close(gradients_of(learner_of(whole), BATCH), gradients_of(learner_of(chunked), BATCH))
