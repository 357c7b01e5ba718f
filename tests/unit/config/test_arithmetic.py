"""Models that take packed rows or a head in chunks, told by their config.json."""

import pytest

from tests.unit.config.builders import GRPO, config, stage
from trinity.config.plan.arithmetic import (
    PACKABLE,
    Arithmetic,
    HeadSettings,
    head_obstacle,
    head_settings,
    packing_obstacle,
    sharing_obstacle,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import deep_merge
from trinity.config.schema.trainer import TrainerConfig
from trinity.errors import UserError
from trinity.types import JsonValue


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"model_type": "qwen2"}, None),
        ({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}, None),
        ({"model_type": "opt"}, "kind opt"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "linear_attention"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, "soft cap"),
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
    found = packing_obstacle(keys, has_flash_attention=False)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_flash_attention_has_the_soft_cap() -> None:
    keys: dict[str, JsonValue] = {"model_type": "gemma2", "attn_logit_softcapping": 50.0}
    assert packing_obstacle(keys, has_flash_attention=True) is None


def test_kinds_are_names_of_transformers() -> None:
    names = pytest.importorskip("transformers").CONFIG_MAPPING.keys()
    assert set(names) >= PACKABLE


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({}, None),
        ({"final_logit_softcapping": None, "logit_scale": 1}, None),
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
    begun = stage(**gpus).model_copy(update={"arithmetic": Arithmetic()})
    assert not begun.recomputes_activations


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
