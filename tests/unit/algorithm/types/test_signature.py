"""What a function takes, read from its source or from the function."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.unit.subtests import as_subtests
from trinity.algorithm.signature import Argument, read_signature, signature_of
from trinity.types import JsonValue

SOURCE = '''
from typing import Literal

Mode = Literal["one", "two"]


def loss(
    inputs: Inputs,
    *,
    low: float = -0.1,
    times: int = 3,
    bound: float | None = None,
    mode: Mode = "one",
    needed: str,
) -> Loss:
    """Says what it does.

    At length.
    """
    raise AssertionError("is not called")


def bare(): ...
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "read_only_" + str(abs(hash(request.node.name)))
    (tmp_path / f"{name}.py").write_text(SOURCE + "\nraise AssertionError('is not imported')\n")
    return name


def test_a_signature_is_read_without_importing_its_module(module: str) -> None:
    signature = read_signature(f"{module}.loss")
    assert (signature.name, signature.input_type, signature.return_type) == (
        "loss",
        "Inputs",
        "Loss",
    )
    assert signature.defaults == {"low": -0.1, "times": 3, "bound": None, "mode": "one"}
    assert signature.arguments["mode"].annotation == "Literal['one', 'two']"
    assert signature.arguments["needed"].is_required
    assert signature.documentation.startswith("Says what it does.")
    assert not signature.takes_any


def test_what_takes_nothing_says_so(module: str) -> None:
    assert read_signature(f"{module}.bare").input_type is None


def test_a_function_that_is_not_there_is_named(module: str) -> None:
    with pytest.raises(ValueError, match="defines no function lost"):
        read_signature(f"{module}.lost")


@as_subtests(
    ("annotation", "fitting", "others"),
    [
        ("float", [0.5, 1], ["1", True, None, [1.0]]),
        ("int", [1], [1.5, True, "1"]),
        ("bool", [True], [1, 0, "true"]),
        ("str", ["a"], [1, None]),
        ("float | None", [1.0, None], [True, "none"]),
        ("Optional[int]", [1, None], [1.5]),
        ("Literal['a', 'b']", ["a", "b"], ["c", None, 1]),
        ("Literal['a'] | int", ["a", 1], ["b", True]),
        ("Literal[1, None]", [1, None], [True, 2]),
        ("Mapping[str, float]", [{"a": 1.0}, 1], []),
        ("", [1, "a", None, [1]], []),
    ],
)
def test_a_value_fits_an_annotation(
    annotation: str, fitting: list[JsonValue], others: list[JsonValue]
) -> None:
    argument = Argument(annotation)
    assert [value for value in fitting if not argument.allows(value)] == []
    assert [value for value in others if argument.allows(value)] == []


@pytest.mark.parametrize(
    ("annotation", "demand"),
    [
        ("float", "a number"),
        ("int | None", "a whole number or null"),
        ("Literal['a', 'b']", "`a` or `b`"),
        ("Optional[bool]", "true or false or null"),
        ("str", "a text"),
    ],
)
def test_a_demand_is_said_in_words(annotation: str, demand: str) -> None:
    assert Argument(annotation).type_description == demand


def test_an_imported_function_has_the_signature_of_its_source() -> None:
    def own(
        samples: "Samples",  # type: ignore[name-defined]  # noqa: F821
        scale: float = 2.0,
        *,
        mode: Literal["a", "b"] = "a",
        most: int | None = None,
    ) -> None:
        """Mine."""

    signature = signature_of(own)
    assert (signature.input_type, signature.return_type) == ("Samples", "None")
    assert signature.defaults == {"scale": 2.0, "mode": "a", "most": None}
    assert signature.arguments["mode"].allows("b") and not signature.arguments["mode"].allows("c")
    assert signature.arguments["most"].allows(None) and not signature.arguments["most"].allows("1")
    assert signature.documentation == "Mine."


@pytest.mark.parametrize(
    ("function", "given", "takes_any"),
    [
        (lambda: 1, None, False),
        (lambda *, a: a, None, False),
        (lambda one, **rest: (one, rest), "", True),
        (lambda *values: values, None, False),
    ],
)
def test_functions_of_any_shape_are_told_apart(
    function: Callable[..., object], given: str | None, takes_any: bool
) -> None:
    signature = signature_of(function)
    assert (signature.input_type, signature.takes_any) == (given, takes_any)


def test_a_signature_of_the_losses_agrees_with_the_functions() -> None:
    from trinity.algorithm.policy_loss import POLICY_LOSSES

    for name, path in POLICY_LOSSES.builtins.items():
        read, imported = read_signature(path), signature_of(POLICY_LOSSES.get(name))
        assert read.defaults == imported.defaults
        assert read.input_type == imported.input_type
