"""The grading process: reads [response, truth, is_whole] as JSON lines and answers 1 or 0.

python -m trinity.rewards.math_grader
"""

import json
import logging
import re
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from trinity.rewards.math_answers import is_same_answer

IN_TEXT = (LatexExtractionConfig(), ExprExtractionConfig())
FORMULA = (LatexExtractionConfig(),)
PARSE_SECONDS = 4
VERIFY_SECONDS = 4
LOAD_SECONDS = 50
_HUGE = re.compile(r"\^\s*\{?\s*-?\d{5,}|\^\s*\{[^{}]*\^|\d{4,}\s*!|!\s*!|\^\s*\d\s*\^")
"""Powers and factorials that take Python longer than anyone waits."""


def main() -> None:
    """Grades until the parent closes the pipe."""
    logging.disable(logging.WARNING)
    _load_parser()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        response, truth, is_whole = json.loads(line)
        is_right = (
            is_same_answer(response, truth, is_equal)
            if is_whole
            else matches_truth(response, truth)
        )
        sys.stdout.write("1\n" if is_right else "0\n")
        sys.stdout.flush()


def _load_parser() -> None:
    """Parses once: the first formula takes far longer than others, and would not be graded."""
    half = parse(r"$\frac{1}{2}$", FORMULA, parsing_timeout=LOAD_SECONDS)
    verify(
        half, parse("$0.5$", FORMULA, parsing_timeout=LOAD_SECONDS), timeout_seconds=LOAD_SECONDS
    )


def is_equal(answer: str, truth: str) -> bool:
    """Returns true if two formulas have the same value."""
    if _HUGE.search(answer) or _HUGE.search(truth):
        return False
    given, expected = _parse_formula(answer), _parse_formula(truth)
    return bool(given and expected) and verify(expected, given, timeout_seconds=VERIFY_SECONDS)


def matches_truth(response: str, truth: str) -> bool:
    """Returns true if any parse of the truth equals the answer found in the response."""
    answer = [] if _HUGE.search(response) else _parse(response)
    return bool(answer) and any(
        verify(gold, answer, timeout_seconds=VERIFY_SECONDS) for gold in _parse_truth(truth)
    )


def _parse_truth(truth: str) -> list[list[object]]:
    """Parses the truth; a bare one needs dollar signs to be parsed as a whole expression."""
    bare = "$" not in truth and "\\boxed" not in truth
    readings = [_parse(f"${truth}$")] if bare else []
    return [gold for gold in [*readings, _parse(truth)] if gold][:1]


def _parse(text: str) -> list[object]:
    return list(parse(text, IN_TEXT, parsing_timeout=PARSE_SECONDS))


def _parse_formula(text: str) -> list[object]:
    """Parses the whole text; otherwise the parser falls back to the last number in it."""
    return list(
        parse(
            f"${text}$",
            FORMULA,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=PARSE_SECONDS,
        )
    )


if __name__ == "__main__":
    main()
