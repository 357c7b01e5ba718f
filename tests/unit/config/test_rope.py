"""The position embeddings of a model with the user's laid over them."""

import pytest

from tests.unit.subtests import as_subtests
from trinity.config.plan.rope import rope_keys, rope_parameters, with_rope
from trinity.config.schema.model import ModelConfig
from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue

YARN: dict[str, JsonValue] = {"rope_type": "yarn", "factor": 4.0}
NEWEST: dict[str, JsonValue] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "max_position_embeddings": 128,
}
OLDER: dict[str, JsonValue] = {"rope_theta": 1e6, "max_position_embeddings": 128}


@pytest.mark.parametrize("keys", [NEWEST, OLDER])
def test_a_type_keeps_the_base_and_knows_the_length_of_the_model(
    keys: dict[str, JsonValue],
) -> None:
    expected = {**YARN, "rope_theta": 1e6, "original_max_position_embeddings": 128}
    assert rope_parameters(keys, YARN, None) == expected
    older: dict[str, JsonValue] = {"type": "yarn", "factor": 4.0}
    assert rope_parameters(keys, older, None) == expected


def test_a_base_alone_keeps_the_rest() -> None:
    linear: JsonValue = {"type": "linear", "factor": 2.0}
    scaled: dict[str, JsonValue] = {**OLDER, "rope_scaling": linear}
    found = rope_parameters(scaled, {}, 5e5)
    assert found == {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    assert rope_parameters({}, {}, None) == {"rope_type": "default", "rope_theta": 1e4}


def test_another_type_takes_nothing_from_the_one_before() -> None:
    llama: JsonValue = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1}
    scaled: dict[str, JsonValue] = {**OLDER, "rope_scaling": llama}
    found = rope_parameters(scaled, {"rope_type": "dynamic", "factor": 2.0}, None)
    assert found == {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}


@as_subtests(
    ("scaling", "said"),
    [
        ({"rope_type": "yarm", "factor": 4.0}, "no type of transformers: did you mean `yarn`?"),
        ({"rope_type": ["yarn"], "factor": 4.0}, "is no type of transformers"),
        ({"factor": 4.0}, "scales nothing: give a `rope_type`, one of linear, dynamic, yarn"),
        ({"rope_type": "default", "factor": 4.0}, "scales nothing"),
        ({"rope_type": "yarn"}, "lacks `factor`, which `rope_type: yarn` needs"),
        ({"type": "linear", "factor": "4x"}, "`model.rope_scaling.factor: 4x` must be a number"),
        ({"rope_type": "dynamic", "factor": 0.5}, "must be a number of 1 or more"),
        ({"rope_type": "llama3", "factor": 8.0}, "lacks `low_freq_factor`"),
        ({"rope_type": "longrope", "factor": 8.0}, "lacks `short_factor`"),
    ],
)
def test_a_scaling_that_cannot_be_computed_is_refused(
    scaling: dict[str, JsonValue], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        rope_parameters(OLDER, scaling, None)
    assert said in str(refused.value)


def test_a_factor_alone_changes_the_models_own_scaling() -> None:
    linear: JsonValue = {"rope_type": "linear", "factor": 2.0}
    found = rope_parameters({**OLDER, "rope_scaling": linear}, {"factor": 8.0}, None)
    assert found == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    factors: JsonValue = [1.0, 2.0]
    long: dict[str, JsonValue] = {
        "rope_type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
    }
    assert rope_parameters(OLDER, long, None)["short_factor"] == factors


def test_a_model_with_embeddings_for_each_kind_of_layer_is_refused() -> None:
    nested: dict[str, JsonValue] = {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}
    with pytest.raises(UserError, match="each kind of layer"):
        rope_parameters(nested, YARN, None)


def test_keys_stand_where_the_language_model_has_its_own() -> None:
    model = ModelConfig(rope_theta=5e5)
    parameters = {"rope_type": "default", "rope_theta": 5e5}
    assert rope_keys(OLDER, model) == {"rope_parameters": parameters}
    inner: dict[str, JsonValue] = {"model_type": "x", "text_config": dict(OLDER)}
    assert rope_keys(inner, model) == {"text_config": {"rope_parameters": parameters}}
    whole = with_rope(inner, model)
    assert whole == {"model_type": "x", "text_config": {**OLDER, "rope_parameters": parameters}}
    assert with_rope(OLDER, ModelConfig()) == OLDER
