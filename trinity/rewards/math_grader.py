"""The grading process: reads [response, truth, is_whole] as JSON lines and answers 1 or 0.

python -m trinity.rewards.math_grader

Its limits are processor seconds: on a busy machine an answer takes longer, and is as right.
"""

import json
import logging
import math
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from trinity.rewards.math_answers import in_numbers, is_same_answer
from trinity.rewards.math_prose import is_stated
from trinity.rewards.math_units import in_plain_numbers

IN_TEXT = (LatexExtractionConfig(), ExprExtractionConfig())
FORMULA = (LatexExtractionConfig(),)
GRADE_SECONDS = 8
LAST_SECONDS = 12
"""Ends the process: some expressions keep Python in one call that no signal interrupts."""
LOAD_SECONDS = 50
_HUGE = re.compile(r"\^\s*\{?\s*-?\d{5,}|\^\s*\{[^{}]*\^|\d{4,}\s*!|!\s*!|\^\s*\d\s*\^")
"""Powers and factorials that take Python longer than anyone waits."""

_THOUSANDS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d| \d)")
_NUMBERS_APART = re.compile(r"(?<![\w^.])\d[\d.]*\s+\d")
_MISREAD = re.compile(r"(?<!\\)\$|\\f(?:rame)?box(?![a-z])|\d\s*\\[dt]?binom(?![a-z])")
"""The parser adds numbers that stand beside each other, and ends a formula at a dollar sign."""


class OutOfTime(BaseException):
    """An expression takes too long; no exception, so that the parser does not catch it."""


def main() -> None:
    """Grades until the parent closes the pipe."""
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with limited(LOAD_SECONDS, LOAD_SECONDS):
        _load_parser()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        response, truth, is_whole = json.loads(line)
        sys.stdout.write("1\n" if _is_right(response, truth, is_whole) else "0\n")
        sys.stdout.flush()


def _is_right(response: str, truth: str, is_whole: bool) -> bool:
    try:
        with limited(GRADE_SECONDS, LAST_SECONDS):
            if is_whole:
                return is_same_answer(response, truth, is_equal)
            return matches_truth(response, truth)
    except OutOfTime:
        return False


@contextmanager
def limited(seconds: float, last_seconds: float) -> Iterator[None]:
    """Raises OutOfTime after so many processor seconds; later the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    last = math.ceil(used.ru_utime + used.ru_stime + last_seconds)
    limits = resource.getrlimit(resource.RLIMIT_CPU)
    most = limits[1]
    if most != resource.RLIM_INFINITY:  # a limit of the machine's, such as `ulimit -t`
        last = min(last, most)
    resource.setrlimit(resource.RLIMIT_CPU, (last, most))
    before = signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_CPU, limits)


def _give_up(*_: object) -> None:
    raise OutOfTime


def _load_parser() -> None:
    """Parses once: the first formula takes far longer than others, and would not be graded."""
    half, point_five = (_parse_formula(text) for text in (r"\frac{1}{2}", "0.5"))
    verify(half, point_five, timeout_seconds=None)


def is_equal(answer: str, truth: str) -> bool:
    """Returns true if two formulas have the same value."""
    answer, truth = (_THOUSANDS.sub(_without_blanks, text) for text in (answer, truth))
    unread = (_HUGE, _NUMBERS_APART, _MISREAD)
    if any(part.search(text) for part in unread for text in (answer, truth)):
        return False
    given, expected = _parse_formula(answer), _parse_formula(truth)
    return bool(given and expected) and verify(expected, given, timeout_seconds=None)


def _without_blanks(found: re.Match[str]) -> str:
    return found[0].replace(" ", "")


def matches_truth(response: str, truth: str) -> bool:
    """Returns true if any parse of the truth equals the answer found in the response."""
    response, truth = in_plain_numbers(in_numbers(response)), in_numbers(truth)
    answer = [] if _HUGE.search(response) else _parse(response)
    is_found = bool(answer) and any(
        verify(gold, answer, timeout_seconds=None) for gold in _parse_truth(truth)
    )
    return is_found and is_stated(response, truth, is_equal)


def _parse_truth(truth: str) -> list[list[object]]:
    """Parses the truth; a bare one needs dollar signs to be parsed as a whole expression."""
    bare = "$" not in truth and "\\boxed" not in truth
    readings = [_parse(f"${truth}$")] if bare else []
    return [gold for gold in [*readings, _parse(truth)] if gold][:1]


def _parse(text: str) -> list[object]:
    return list(parse(text, IN_TEXT, parsing_timeout=None))


def _parse_formula(text: str) -> list[object]:
    """Parses the whole text; otherwise the parser falls back to the last number in it."""
    return list(
        parse(
            f"${text}$",
            FORMULA,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
        )
    )


if __name__ == "__main__":
    main()
