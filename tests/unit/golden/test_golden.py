"""What users and programs depend on is what was recorded; how to record again: this package."""

import copy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.golden.corpus import difference, entry_of, recorded
from tests.unit.golden.mutations import mutated
from tests.unit.golden.sections import SECTIONS
from tests.unit.golden.text_diff import NoTextsError, base_of, shown_diff, texts_of

LONG = {"keys": [{"name": "x" * 200, "default": 1}], "plain": ["a", "b"]}


@pytest.mark.parametrize("section", SECTIONS)
def test_results_are_those_recorded_and_a_changed_one_is_noticed(
    section: str, tmp_path: Path
) -> None:
    results = SECTIONS[section](tmp_path)
    if told := difference(section, recorded()[section], results):
        pytest.fail(told, pytrace=False)
    name = _change_a_leaf(results)
    told = difference(section, recorded()[section], results)
    assert f"differs from the record in 1 of {len(results)} cases:\n  {name}: " in told
    assert f"python -m tests.unit.golden --diff {section}" in told
    assert f"python -m tests.unit.golden {section}" in told


def _change_a_leaf(tree: Any) -> str:
    """Change the last leaf; answers the name of the case."""
    name = max(tree)
    holder, key = tree, name
    while isinstance(holder[key], dict | list) and holder[key]:
        holder = holder[key]
        key = max(holder) if isinstance(holder, dict) else len(holder) - 1
    holder[key] = "changed on purpose"
    return str(name)


def test_a_case_that_is_gone_or_new_is_noticed() -> None:
    before = {name: entry_of(result) for name, result in {"a": LONG, "b": 1}.items()}
    assert difference("yaml", before, {"a": LONG, "b": 1}) == ""
    assert "b: 1 -> (no such case)" in difference("yaml", before, {"a": LONG})
    assert "c: (no such case) -> 2" in difference("yaml", before, {"a": LONG, "b": 1, "c": 2})


def test_a_number_is_not_a_text_and_not_a_boolean() -> None:
    for other in (True, 1.0, "1"):
        assert difference("yaml", {"a": entry_of(1)}, {"a": other})
        changed = copy.deepcopy(LONG) | {"keys": [{"name": "x" * 200, "default": other}]}
        assert difference("yaml", {"a": entry_of(LONG)}, {"a": changed})


def test_a_diff_shows_the_changed_values_with_their_keys() -> None:
    changed = {"keys": [{"name": "x" * 200, "default": 2}], "plain": ["a", "new", "b"]}
    before, after = {"s": {"a": LONG, "b": LONG, "c": 1}}, {"s": {"a": changed, "b": changed}}
    assert shown_diff(before, after).splitlines() == [
        "=== s: a, s: b",
        "-keys[0].default = 1",
        "+keys[0].default = 2",
        '+plain[] = "new"',
        "=== s: c",
        "-1",
    ]
    assert shown_diff(before, copy.deepcopy(before)) == ""


def test_texts_of_a_commit_are_made_by_its_own_code(tmp_path: Path) -> None:
    program = _repository(tmp_path)
    assert texts_of(base_of(tmp_path), [], tmp_path) == {"s": {"a": 1}}
    program.write_text("a mistake")
    assert texts_of("HEAD", ["s"], tmp_path) == {"s": {"a": 1}}
    _git(tmp_path, "commit", "-qam", "breaks it")
    with pytest.raises(NoTextsError, match="HEAD does not make these texts: SyntaxError"):
        texts_of("HEAD", [], tmp_path)


def test_without_the_commit_or_a_checkout_a_sentence_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NoTextsError, match=r"missing: .*not a git repository.* --base COMMIT\.$"):
        base_of(tmp_path)
    _repository(tmp_path)
    with pytest.raises(NoTextsError, match=r"missing: fatal: .*no-such-commit"):
        texts_of("no-such-commit", [], tmp_path)


def _repository(folder: Path) -> Path:
    """A commit whose texts are `{"s": {"a": 1}}`; answers the program that prints them."""
    program = folder / "tests/unit/golden/__main__.py"
    program.parent.mkdir(parents=True)
    for package in (folder / "tests", folder / "tests/unit", program.parent):
        (package / "__init__.py").touch()
    program.write_text("""print('{"s": {"a": 1}}')""")
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "makes texts")
    return program


def _git(folder: Path, *words: str) -> None:
    author = ("-c", "user.name=golden", "-c", "user.email=golden@localhost")
    subprocess.run(["git", *author, *words], cwd=folder, check=True)


def test_recipes_lead_to_files_that_are_taken_and_to_some_that_are_refused() -> None:
    counts = recorded()["mutations"]["counts"]
    assert counts["recipes"] >= 100
    assert 40 <= counts["accepted"] <= counts["recipes"] - 40


def test_a_recipe_changes_its_base() -> None:
    tree = {"a": {"b": 1, "c": [2]}}
    steps = [[["a", "b"], "rename", "bb"], [["a", "c", 0], "set", 3], [["d", "e"], "set", 4]]
    assert mutated(tree, {"steps": steps}) == {"a": {"bb": 1, "c": [3]}, "d": {"e": 4}}
    assert mutated(tree, {"steps": [[["a", "b"], "drop", None], [["x", "y"], "drop", None]]}) == {
        "a": {"c": [2]}
    }
