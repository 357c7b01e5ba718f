"""Vision models of each family in a rank, held against transformers and against one another."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageTextToText

from services.trainer.learner.prepared_batch import PreparedBatch
from tests.integration.trainer.learners import (
    assert_same,
    gradients_of,
    stepped,
    weights_of,
)
from tests.integration.trainer.vision_rows import (
    CUT,
    PACKED,
    PADDED,
    LayOut,
    VisionRows,
    as_data,
    close,
    gradients_by_transformers,
    logprobs_by_transformers,
    vision_rows,
)
from tests.support.vision_models import make_vision_model
from tests.unit.trainer.builders import make_plan
from trinity.data.conversations import FAMILIES
from trinity.errors import UserError

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner

GRPO = {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "k2"}
SFT = {"algorithm_type": "sft"}
Open = Callable[..., "Learner"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vision")
    return {kind: make_vision_model(folder / kind, kind) for kind in FAMILIES}


@pytest.fixture(scope="module")
def rows(models: dict[str, Path]) -> dict[str, VisionRows]:
    return {kind: vision_rows(directory) for kind, directory in models.items()}


@pytest.fixture
def opened(ranks: "Ranks", models: dict[str, Path]) -> Open:
    from services.trainer.learner.learner import Learner

    def open_learner(
        kind: str, algorithm: dict[str, object], trainer: LayOut, model: LayOut | None = None
    ) -> "Learner":
        lengths = {"max_prompt_tokens": 100, "max_response_tokens": 28}
        plan = make_plan(models[kind], algorithm, trainer, {**lengths, **(model or {})})
        return Learner(plan=plan, model_directory=models[kind], ranks=ranks)

    return open_learner


@pytest.mark.parametrize("kind", FAMILIES)
def test_log_probabilities_are_those_of_transformers_row_by_row(
    opened: Open, models: dict[str, Path], rows: dict[str, VisionRows], kind: str
) -> None:
    model = AutoModelForImageTextToText.from_pretrained(models[kind], dtype=torch.float32)
    with torch.no_grad():
        expected = logprobs_by_transformers(model, rows[kind])
    for layout in (PADDED, PACKED, CUT):
        actor = opened(kind, GRPO, layout)._roles.actor
        assert actor.worker.engine.model_config.use_remove_padding == layout["use_remove_padding"]
        prepared = PreparedBatch.from_batch(rows[kind].batch)
        found = actor.compute_outputs(prepared, ["logprobs"])["logprobs"]
        for row, of_row in zip(found, expected, strict=True):
            np.testing.assert_allclose(row[: len(of_row)], of_row, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", FAMILIES)
def test_gradients_are_those_of_transformers_padded_packed_and_cut(
    opened: Open, models: dict[str, Path], rows: dict[str, VisionRows], kind: str
) -> None:
    expected = gradients_by_transformers(models[kind], rows[kind])
    assert any("visual" in name and np.abs(array).max() > 1e-5 for name, array in expected.items())
    for layout in (PADDED, PACKED, CUT):
        found = gradients_of(opened(kind, SFT, layout), as_data(rows[kind]))
        close(expected, {name: found[name] for name in expected})


@pytest.mark.parametrize("kind", FAMILIES)
def test_policy_gradients_are_the_same_padded_packed_cut_and_recomputed(
    opened: Open, rows: dict[str, VisionRows], kind: str
) -> None:
    batch = rows[kind].batch
    one_a_part = {**PACKED, "max_token_len_per_gpu": 8}
    expected = gradients_of(opened(kind, GRPO, one_a_part), batch)
    recomputed = {**PACKED, "enable_gradient_checkpointing": True}
    for layout in (PADDED, PACKED, CUT, recomputed):
        close(expected, gradients_of(opened(kind, GRPO, layout), batch))


def is_of_tower(name: str) -> bool:
    return "visual" in name


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_frozen_tower_keeps_its_weights_and_a_stage_goes_on_from_its_checkpoint(
    opened: Open, rows: dict[str, VisionRows], kind: str, tmp_path: Path
) -> None:
    frozen = {**PACKED, "freeze_vision_tower": True}
    learner, batch = opened(kind, SFT, frozen), as_data(rows[kind])
    before = weights_of(learner)
    stepped(learner, batch)
    after = weights_of(learner)
    changed = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    assert changed and not any(map(is_of_tower, changed))
    assert {name for name in before if not is_of_tower(name)} - changed == set()
    learner.save(tmp_path, 1)
    resumed = opened(kind, SFT, frozen)
    resumed.load(tmp_path)
    following = replace(batch, step=2)
    stepped(learner, following)
    stepped(resumed, following)
    assert_same(weights_of(learner), weights_of(resumed))


@pytest.mark.parametrize("kind", FAMILIES)
def test_an_adapter_is_on_the_language_part_and_weights_keep_their_names(
    opened: Open, models: dict[str, Path], rows: dict[str, VisionRows], kind: str
) -> None:
    lora = {"lora_configs": [{"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}]}
    learner = opened(kind, SFT, PACKED, lora)
    before = weights_of(learner)
    adapted = gradients_of(learner, as_data(rows[kind]))
    assert adapted and not any(map(is_of_tower, adapted))
    after = weights_of(learner)
    changed = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    assert changed and not any(map(is_of_tower, changed))
    with safe_open(models[kind] / "model.safetensors", "numpy") as stored:
        assert set(stored.keys()) == set(after) == set(weights_of(opened(kind, SFT, PACKED)))


def test_a_cut_sample_is_named(opened: Open, rows: dict[str, VisionRows]) -> None:
    batch = as_data(rows["qwen2_5_vl"])
    without = replace(batch.rows[0], images=batch.rows[1].images)
    with pytest.raises(UserError, match="1 images belong to a sequence"):
        stepped(opened("qwen2_5_vl", SFT, PACKED), replace(batch, rows=[without]))
