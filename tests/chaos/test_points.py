"""The points and the switches; that their functions exist, each process says when it starts."""

import pytest

from tests.chaos.patching import patch
from tests.chaos.points import ALL
from tests.chaos.weak.weaknesses import WEAKNESSES


def test_points_have_names_of_their_own() -> None:
    assert len({point.name for point in ALL}) == len(ALL)


def test_no_function_is_weakened_twice_under_one_name() -> None:
    switches = [(one.protection, one.target) for one in WEAKNESSES]
    assert len(set(switches)) == len(switches)


@pytest.mark.parametrize(
    "target",
    [
        "trinity.weights.manifest:gone",
        "tests.chaos.patching:Function",
        "trinity.errors:UserError.gone",
    ],
)
def test_what_is_no_function_any_more_cannot_be_patched(target: str) -> None:
    with pytest.raises(AttributeError):
        patch(target, lambda original: original)
