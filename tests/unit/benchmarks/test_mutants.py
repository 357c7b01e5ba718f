"""Functions that mutants let go of leave each mutant a test that finds it."""

import ast

from benchmarks.mutants_matrix import spared_of
from benchmarks.mutants_variants import wide_variants


def test_a_function_is_spared_only_while_others_find_all_of_its_mutants() -> None:
    first, second = (f"a::test_{name}" for name in ("first", "second"))
    kept = "golden::test_third"
    matrix = [
        {"mutant": "m1", "found": [first, second]},
        {"mutant": "m2", "found": [second]},
        {"mutant": "m3", "found": [first, kept]},
        {"mutant": "m4", "found": []},
    ]
    assert spared_of(matrix) == {first: 2}
    assert spared_of(matrix[:1]) == {first: 1}
    assert spared_of([{"mutant": "m1", "found": [second, kept]}]) == {second: 1}


def test_errors_texts_and_conditions_of_checks_are_changed() -> None:
    (check,) = ast.parse("if wrong:\n    raise ValueError('text')").body
    found = [word for node in ast.walk(check) for word, _ in wide_variants(node)]
    assert found == ["condition negated", "not raised", "other text"]
