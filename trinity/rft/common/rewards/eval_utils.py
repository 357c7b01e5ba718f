r"""Helpers of rewards by Trinity-RFT's names: boxed answers, equations, think tags."""

import ast
import operator
import re
from collections.abc import Sequence
from typing import Any

from trinity.rewards.math_grading import is_equivalent, last_boxed
from trinity.rewards.tags import tagged

_NAMED = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))")
MAX_CHARACTERS = 200


def simple_answer_parser(response: str) -> str:
    """Returns what stands between answer tags, else the whole text."""
    found = (own for line in response.split("\n") for own in tagged(line, "answer"))
    return next(found, response)


def find_boxed_answer(raw_answer: str, timeout: float = 10) -> str | None:
    r"""Returns the content of the last `\boxed{}`, or None."""
    del timeout
    return last_boxed(raw_answer)


def last_boxed_only_string(string: str) -> str | None:
    r"""Returns the last `\boxed{}` with its braces, or None."""
    inside = last_boxed(string)
    return None if inside is None else f"\\boxed{{{inside}}}"


def remove_boxed(s: str) -> str:
    r"""Returns the content of a `\boxed{}`."""
    return last_boxed(s) or s


def is_equiv(str1: str | None, str2: str | None, verbose: bool = False) -> bool:
    """Returns True if two answers are mathematically equal, or both None."""
    del verbose
    if str1 is None or str2 is None:
        return str1 is str2
    return is_equivalent(str1, str2)


def compute_score_v0(solution_str: str, ground_truth: str) -> float:
    r"""Returns 1 if the last `\boxed{}` holds the truth, boxed itself or not; else 0."""
    answer, boxed_truth = last_boxed(solution_str), last_boxed(ground_truth)
    expected = ground_truth if boxed_truth is None else boxed_truth
    return float(answer is not None and is_equivalent(answer, expected))


def verify_math_answer(response_text: str, ground_truth: str) -> tuple[float, dict[str, Any]]:
    """Returns 1 if the answer in a response equals the truth, else 0, and both as read."""
    answer, expected = _extracted(response_text), _extracted(str(ground_truth))
    is_correct = is_equivalent(answer, expected)
    details = {"parsed_prediction": answer, "ground_truth": expected, "is_correct": is_correct}
    return float(is_correct), details


def compute_score(solution_str: str, ground_truth: str) -> tuple[float, str]:
    """Returns 1 if the answer in a response equals the truth, else 0, and the answer."""
    answer = _extracted(str(solution_str))
    return float(is_equivalent(answer, str(ground_truth))), answer


def _extracted(text: str) -> str:
    r"""Returns the last `\boxed{}`, else what follows the last `Answer:`, else the text."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    named: list[str] = _NAMED.findall(text)
    return named[-1].strip() if named else text


def validate_think_pattern(text: str) -> bool:
    """Returns True if there is exactly one pair of think tags, the opening one first."""
    opening, closing = "<think>", "</think>"
    if (text.count(opening), text.count(closing)) != (1, 1):
        return False
    return text.find(opening) < text.find(closing)


def parse_with_timeout(pred: str, parsing_timeout: int = 5, **kwargs: Any) -> list[str]:
    """Returns an answer for `verify_with_timeout`; each of the two has a time limit."""
    del parsing_timeout, kwargs
    return [pred]


def verify_with_timeout(gold: Any, target: Any, timeout_seconds: int = 5, **kwargs: Any) -> bool:
    """Returns True if two answers are mathematically equal."""
    del timeout_seconds, kwargs
    expected, answer = (own[0] if isinstance(own, list) else own for own in (gold, target))
    return is_equivalent(str(answer), str(expected))


def match_answer(response: str) -> tuple[bool, str]:
    r"""Returns whether there is a `\boxed{}` after the thoughts, and its content or the text."""
    said = response.rpartition("</think>")[2]
    boxed = last_boxed(said)
    return boxed is not None, said if boxed is None else boxed


def grade_answer(given_answer: str | None, ground_truth: str) -> tuple[bool, str]:
    """Returns whether an answer equals the truth mathematically, and the answer."""
    answer = (given_answer or "").strip()
    return bool(answer) and is_equivalent(answer, str(ground_truth)), answer


def remove_right_units(string: str) -> str:
    r"""Returns an answer without the unit that stands in `\text{ }` behind it."""
    return string.partition(r"\text{ ")[0]


def fix_fracs(string: str) -> str:
    r"""Returns a formula in which `\frac12` is `\frac{1}{2}`."""
    return _FRACTION.sub(_in_braces, string)


def _in_braces(found: re.Match[str]) -> str:
    above, below = found[1] or found[2] or "", found[3] or found[4] or ""
    return f"\\frac{{{above}}}{{{below}}}"


def extract_solution(solution_str: str) -> str | None:
    """Returns the last answer in the last line, or None."""
    answers = tagged(solution_str.split("\n")[-1], "answer")
    return answers[-1].strip() if answers else None


def validate_equation(equation_str: str, available_numbers: Sequence[int]) -> bool:
    """Returns True if an equation uses each number once, and no other."""
    found: list[str] = re.findall(r"\d+", equation_str)
    if any(len(number) > MAX_CHARACTERS for number in found):
        return False
    numbers = [int(number) for number in found]
    return sorted(numbers) == sorted(available_numbers)


def evaluate_equation(equation_str: str) -> float | None:
    """Returns the value of an equation of the four operations; None for any other text."""
    try:
        return _value(ast.parse(equation_str.strip()[:MAX_CHARACTERS], mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and (apply := _OPERATORS.get(type(node.op))):
        value: float = apply(_value(node.left), _value(node.right))
        return value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    raise ValueError("no equation")
