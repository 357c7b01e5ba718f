"""The grading process: compares a response with the truth.

python -m trinity.rewards.math_grader

The first request is empty, and its answer says that the parser is loaded. Each other one has a
`response`, a `truth` and `is_whole`; its answer has `is_right`.
Its limits are processor seconds: on a busy machine an answer takes longer, and is as right.
"""

import logging
import math
import re
import resource
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import sympy
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Basic, Float, I, MatrixBase, Rational

from trinity.rewards.math_answers import is_same_answer
from trinity.rewards.math_forms import in_numbers
from trinity.rewards.math_prose import is_stated, spaced
from trinity.rewards.math_sizes import is_computable, is_readable
from trinity.rewards.math_units import in_plain_numbers
from trinity.runtime.process.channel import RequestChannel

logger = logging.getLogger(__name__)

IN_TEXT = (LatexExtractionConfig(), ExprExtractionConfig())
FORMULA = (LatexExtractionConfig(),)
GRADE_SECONDS = 5
LAST_SECONDS = 8
"""Ends the process: some expressions keep Python in one call that no signal interrupts."""
SERIES_SECONDS = 2
"""For integrals, series and limits: some are computed at once, and the others never."""
LOAD_SECONDS = 50
_SERIES = re.compile(r"\\(?:o|i{0,2})int(?![a-z])|\\(?:sum|prod|lim)(?![a-z])")
_THOUSANDS = re.compile(r"(?<![\d.,] )(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d| \d)")
_NUMBERS_APART = re.compile(r"(?<![\w^.])\d[\d.]*\s+\d")
_MISREAD = re.compile(r"(?<!\\)\$|\\f(?:rame)?box(?![a-z])|\d\s*\\[dt]?binom(?![a-z])")
"""The parser adds adjacent numbers, and ends a formula at a dollar sign."""


class OutOfTime(BaseException):
    """An expression takes too long; no exception, so that the parser does not catch it."""


def main() -> None:
    """Grades until the parent closes the pipe."""
    channel = RequestChannel()
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with limited(LOAD_SECONDS, LOAD_SECONDS):
        _load_parser()
    for request in channel.requests():
        channel.write({"is_right": _is_right(**request)} if request else {})


def _is_right(response: str, truth: str, is_whole: bool) -> bool:
    try:
        is_series = _SERIES.search(response) or _SERIES.search(truth)
        with limited(SERIES_SECONDS if is_series else GRADE_SECONDS, LAST_SECONDS):
            if is_whole:
                return is_same_answer(response, truth, is_equal)
            return matches_truth(response, truth)
    except OutOfTime:
        return False
    except Exception:  # the parser may raise any error
        logger.exception("an answer could not be graded")
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
    """Parses once: the first formula takes far longer than others, and would not be graded.

    Also stops the parser from evaluating binomials, the only terms that it computes while reading.
    """
    sympy.binomial = partial(sympy.binomial, evaluate=False)
    half, point_five = (_parse_formula(text) for text in (r"\frac{1}{2}", "0.5"))
    verify(half, point_five, timeout_seconds=None)


def is_equal(answer: str, truth: str) -> bool:
    """Returns true if two formulas have the same value."""
    answer, truth = (_THOUSANDS.sub(_without_blanks, text) for text in (answer, truth))
    unread = (_NUMBERS_APART, _MISREAD)
    if any(part.search(text) for part in unread for text in (answer, truth)):
        return False
    given, expected = _parse_formula(answer), _parse_formula(truth)
    return bool(given and expected) and verify(expected, given, timeout_seconds=None)


def _without_blanks(found: re.Match[str]) -> str:
    return found[0].replace(" ", "")


def matches_truth(response: str, truth: str) -> bool:
    """Returns true if prose states the truth; without numbers, if any parse of it equals it."""
    response, truth = in_plain_numbers(spaced(in_numbers(response))), in_numbers(truth)
    if (verdict := is_stated(response, truth, is_equal)) is not None:
        return verdict
    answer = _parse(response)
    return bool(answer) and any(
        verify(gold, answer, timeout_seconds=None) for gold in _parse_truth(truth)
    )


def _parse_truth(truth: str) -> list[list[object]]:
    """Parses the truth; a bare one needs dollar signs to be parsed as a whole expression."""
    bare = "$" not in truth and "\\boxed" not in truth
    readings = [_parse(f"${truth}$")] if bare else []
    return [gold for gold in [*readings, _parse(truth)] if gold][:1]


def _parse(text: str) -> list[object]:
    return _computable(parse(text, IN_TEXT, parsing_timeout=None))


def _computable(parsed: Iterable[object]) -> list[object]:
    """Returns parsed expressions, with the imaginary unit, without those that become too large."""
    expressions = [each for each in parsed if isinstance(each, Basic | MatrixBase)]
    return [_exact(each) for each in expressions if is_computable(each)]


def _exact(expression: Basic | MatrixBase) -> Basic | MatrixBase:
    """Returns the expression with the imaginary unit for `i`, and fractions for its decimals."""
    names = dict.fromkeys((each for each in expression.free_symbols if str(each) == "i"), I)
    decimals = {each: Rational(str(each)) for each in expression.atoms(Float)}
    exact = {**names, **decimals}
    return expression.xreplace(exact) if exact and not isinstance(expression, Float) else expression


def _parse_formula(text: str) -> list[object]:
    """Parses the whole text; otherwise the parser falls back to the last number in it.

    Returns what can be computed in a moment.
    """
    if not is_readable(text):
        return []
    return _computable(
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
