"""Models that take packed rows or a head in chunks, told by their config.json."""

import re
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, config, stage
from tests.unit.subtests import as_subtests
from trinity.config.plan.arithmetic import (
    PACKABLE,
    PACKED_ATTENTION,
    HeadSettings,
    dropped_by,
    head_obstacle,
    head_settings,
    laid_over,
    packing_obstacle,
    sharing_obstacle,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import deep_merge
from trinity.config.schema.trainer import TrainerConfig
from trinity.errors import UserError
from trinity.types import JsonValue


@as_subtests(
    ("keys", "reason"),
    [
        ({"model_type": "qwen2"}, None),
        ({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}, None),
        ({"model_type": "opt"}, "kind opt"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "linear_attention"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, None),
        ({"model_type": "gpt_oss"}, None),
        ({"model_type": "gemma3", "vision_config": {}, "text_config": {}}, "kind gemma3"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, None),
        ({"model_type": "llama", "vision_config": {"depth": 1}}, "pictures"),
        ({"model_type": "llama", "attn_implementation": "eager"}, "eager"),
        ({"model_type": "llama", "attn_implementation": "flash_attention_2"}, None),
        ({}, "kind None"),
    ],
)
def test_models_that_cannot_take_packed_rows_are_told_by_their_keys(
    keys: dict[str, JsonValue], reason: str | None
) -> None:
    found = packing_obstacle(keys)
    assert (found is None) if reason is None else (found is not None and reason in found)


@pytest.mark.parametrize(
    ("keys", "droppers"),
    [
        ({"model_type": "llama", "sliding_window": 8}, set()),
        ({"model_type": "gemma2", "attn_logit_softcapping": None}, set()),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, {"sdpa", "flash_attention_3"}),
        ({"text_config": {"attn_logit_softcapping": 3.0}}, {"sdpa", "flash_attention_3"}),
        ({"model_type": "gpt_oss"}, {"sdpa", "flash_attention_2", "flash_attention_3"}),
        (
            {"model_type": "falcon", "alibi": True},
            {"sdpa", "flash_attention_2", "flash_attention_3", "flex_attention", PACKED_ATTENTION},
        ),
    ],
)
def test_attentions_that_drop_a_part_of_a_model_are_known(
    keys: dict[str, JsonValue], droppers: set[str]
) -> None:
    attentions = {"eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3"}
    found = {name for name in (*attentions, PACKED_ATTENTION) if dropped_by(name, keys)}
    assert found == droppers


def test_keys_of_a_part_are_laid_over_those_of_the_part() -> None:
    inner: dict[str, JsonValue] = {"model_type": "gemma3_text", "sliding_window": 8}
    laid = laid_over({"text_config": inner}, {"text_config": {"sliding_window": 4}})
    assert laid == {"text_config": {**inner, "sliding_window": 4}}


def test_the_page_on_training_lists_the_kinds_that_are_packed() -> None:
    text = (Path(__file__).parents[3] / "docs/training.md").read_text()
    listed = text.partition("Packed kinds:")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == PACKABLE


def test_kinds_are_names_of_transformers() -> None:
    names = pytest.importorskip("transformers").CONFIG_MAPPING.keys()
    assert set(names) >= PACKABLE


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({}, None),
        ({"final_logit_softcapping": None}, None),
        ({"logit_scale": 1}, "logit_scale"),
        ({"logits_soft_cap": 30.0}, "logits_soft_cap"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"text_config": {"logits_scaling": 8.0}}, "logits_scaling"),
    ],
)
def test_models_that_change_their_logits_are_told_by_their_keys(
    keys: dict[str, JsonValue], key: str | None
) -> None:
    found = head_obstacle(keys)
    assert (found is None) if key is None else (found is not None and key in found)


def test_activations_are_computed_again_on_gpus_unless_the_user_says_no() -> None:
    def stage(**changes: object) -> StagePlan:
        return plan_experiment(config(**changes)).stages[0]

    gpus = {"cluster": {"gpu_per_node": 2}}
    assert not stage().recomputes_activations
    assert stage(**gpus).recomputes_activations and stage(**gpus).critic_recomputes_activations
    on = {"enable_gradient_checkpointing": True}
    chosen = stage(**gpus, trainer={"enable_gradient_checkpointing": False, "critic": on})
    assert (chosen.recomputes_activations, chosen.critic_recomputes_activations) == (False, True)
    assert stage(trainer=on).recomputes_activations


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        ({}, HeadSettings()),
        ({"use_fused_kernels": True}, HeadSettings(is_chunked=True, recomputes=True)),
        ({"entropy_checkpointing": True}, HeadSettings(is_chunked=True, recomputes=True)),
        ({"entropy_from_logits_with_chunking": True}, HeadSettings(is_chunked=True)),
    ],
)
def test_each_key_of_the_head_acts(keys: dict[str, bool], settings: HeadSettings) -> None:
    assert head_settings(TrainerConfig.model_validate(keys)) == settings


@pytest.mark.parametrize(
    ("heads", "of_keys", "size", "reason"),
    [
        (4, 4, 2, None),
        (4, 1, 4, None),
        (12, 4, 2, None),
        (12, 3, 2, "3 heads of keys and values and 2 ranks"),
        (14, 2, 4, "14 attention heads cannot be dealt out to 4 ranks"),
        (6, None, 4, "6 attention heads"),
        (6, None, 3, None),
    ],
)
def test_ranks_share_rows_where_heads_divide(
    heads: int, of_keys: int | None, size: int, reason: str | None
) -> None:
    keys: dict[str, JsonValue] = {"num_attention_heads": heads}
    if of_keys is not None:
        keys["num_key_value_heads"] = of_keys
    inner: dict[str, JsonValue] = {"num_attention_heads": 1, "text_config": dict(keys)}
    for given in (keys, inner):
        found = sharing_obstacle(given, size)
        assert (found is None) if reason is None else (found is not None and reason in found)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rank_num": 3},
            "`trainer.ulysses_sequence_parallel_size: 2` does not divide the 3 ranks",
        ),
        ({"rank_num": 2, "use_remove_padding": False}, "leave out `trainer.use_remove_padding"),
    ],
)
def test_ranks_that_cannot_share_rows_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        stage(trainer={"ulysses_sequence_parallel_size": 2, **changes})


def test_ranks_that_share_rows_need_a_row_for_each_group_alone_and_have_parts_of_them() -> None:
    gpus: dict[str, object] = {"cluster": {"gpu_per_node": 8}, "model": {"max_model_len": 1001}}
    trainer = {"rank_num": 4, "ulysses_sequence_parallel_size": 4}
    one = {"buffer": {"train_batch_size": 1}}
    shared = stage(deep_merge(GRPO, one), trainer=trainer, **gpus)
    assert (shared.sequence_parallel_size, shared.max_token_len_per_gpu) == (4, 501)
    with pytest.raises(UserError, match="cannot feed 4 ranks"):
        stage(deep_merge(GRPO, one), trainer={"rank_num": 4}, **gpus)
