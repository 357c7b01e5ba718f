"""The example of a workflow of one's own does what its page says, in twenty lines."""

import inspect
from pathlib import Path

import pytest

from examples.custom_workflow.second_try import SecondTry
from tests.unit.workflows.scripted import play
from trinity.plugins import WORKFLOWS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("answers", "reward"), [(["2"], 1.0), (["3", "2"], 0.5), (["3", "4"], 0.0)]
)
async def test_a_second_try_is_worth_half(answers: list[str], reward: float) -> None:
    found = await play("second_try", {"question": "1+1=", "answer": "2"}, answers)
    (sample,) = found.experiences
    assert sample.reward == reward
    assert len(found.engine.prompts) == len(answers)


def test_the_documentation_shows_it_as_it_is() -> None:
    assert WORKFLOWS.get("second_try") is SecondTry
    source = inspect.getsource(SecondTry).splitlines()
    shown = [line for line in source if line.strip() and '"""' not in line]
    assert len(shown) <= 20
    page = (ROOT / "docs" / "workflows.md").read_text().splitlines()
    assert all(line in page for line in shown)
