"""Overrides mean what they mean to Hydra."""

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.subtests import as_subtests
from trinity.verl.values import JsonValue, Override, read_override, read_value


@as_subtests(
    ("text", "value"),
    [
        ("1", 1),
        ("-1", -1),
        ("1e-6", 1e-6),
        ("0.", 0.0),
        (".5", 0.5),
        ("True", True),
        ("false", False),
        ("null", None),
        ("", ""),
        ("a b", "a b"),
        ("'1'", "1"),
        ('"a, b"', "a, b"),
        ("[console,wandb]", ["console", "wandb"]),
        ("['a', \"b\"]", ["a", "b"]),
        ('["console","wandb"]', ["console", "wandb"]),
        ("[]", []),
        ("[0.9, 0.999]", [0.9, 0.999]),
        ("[[1,2],[3]]", [[1, 2], [3]]),
        ("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}),
        ("${data.max_prompt_length}", "${data.max_prompt_length}"),
        ("['${oc.env:HOME}/a', '${oc.env:HOME}/b']", ["${oc.env:HOME}/a", "${oc.env:HOME}/b"]),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("2024-01-01", "2024-01-01"),
        ("[unclosed", ["unclosed"]),
        ("a]b", "a]b"),
    ],
)
def test_values(text: str, value: JsonValue) -> None:
    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


@as_subtests(
    ("text", "expected"),
    [
        ("a.b=1", Override("a.b", 1, "")),
        ("+a.b=x", Override("a.b", "x", "+")),
        ("++a.b=[1]", Override("a.b", [1], "++")),
        ("~a.b", Override("a.b", "", "~")),
        ("model_engine=megatron", Override("model_engine", "megatron", "")),
        ("a=b=c", Override("a", "b=c", "")),
        ("run.sh", None),
        ("--config-name=x", None),
        ("dir/run.sh", None),
    ],
)
def test_overrides(text: str, expected: Override | None) -> None:
    assert read_override(text) == expected


@given(st.text())
def test_any_text_is_a_value(text: str) -> None:
    read_value(text)
