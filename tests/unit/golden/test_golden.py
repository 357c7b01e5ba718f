"""What users and programs depend on is what was recorded; how to record again: this package."""

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.unit.golden.corpus import difference, recorded
from tests.unit.golden.mutations import mutated
from tests.unit.golden.sections import RECIPES, SECTIONS


@pytest.mark.parametrize("section", SECTIONS)
def test_results_are_those_recorded(section: str, tmp_path: Path) -> None:
    if told := difference(section, recorded(section), SECTIONS[section](tmp_path)):
        pytest.fail(told, pytrace=False)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_changed_value_is_noticed(section: str) -> None:
    before = recorded(section)
    after = copy.deepcopy(before)
    name = _change_a_leaf(after)
    told = difference(section, before, after)
    assert name in told
    assert "changed on purpose" in told
    assert f"python -m tests.unit.golden {section}" in told


def test_a_case_that_is_gone_is_noticed() -> None:
    before = recorded("yaml")
    after = {name: result for name, result in before.items() if name != "steps octal"}
    assert "steps octal" in difference("yaml", before, after)
    assert difference("yaml", before, copy.deepcopy(before)) == ""


def test_a_number_is_not_a_text_and_not_a_boolean() -> None:
    assert difference("yaml", {"a": 1}, {"a": True})
    assert difference("yaml", {"a": 1}, {"a": 1.0})
    assert difference("yaml", {"a": 1}, {"a": "1"})


def test_recipes_lead_to_files_that_are_taken_and_to_some_that_are_refused() -> None:
    results = recorded("mutations")
    made = [result for name, result in results.items() if not name.startswith("base")]
    assert len(made) == len(recorded(RECIPES)) >= 100
    taken = [result for result in made if "plan" in result]
    assert 40 <= len(taken) <= len(made) - 40


def test_a_recipe_changes_its_base() -> None:
    tree = {"a": {"b": 1, "c": [2]}}
    steps = [[["a", "b"], "rename", "bb"], [["a", "c", 0], "set", 3], [["d", "e"], "set", 4]]
    assert mutated(tree, {"steps": steps}) == {"a": {"bb": 1, "c": [3]}, "d": {"e": 4}}
    assert mutated(tree, {"steps": [[["a", "b"], "drop", None], [["x", "y"], "drop", None]]}) == {
        "a": {"c": [2]}
    }


def _change_a_leaf(tree: Any) -> str:
    """Change the last leaf; answers the name of the case."""
    name = max(tree)
    holder, key = tree, name
    while isinstance(holder[key], dict | list) and holder[key]:
        holder = holder[key]
        key = max(holder) if isinstance(holder, dict) else len(holder) - 1
    holder[key] = "changed on purpose"
    return str(name)
