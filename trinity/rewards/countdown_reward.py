"""The countdown game: reach a target with the given numbers, each used once."""

import ast
import json
import operator
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from trinity.rewards.reward import RewardFn
from trinity.rewards.tags import tagged
from trinity.types import JsonValue

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MAX_CHARACTERS = 200
_RESULT = re.compile(r"\s*([-+]?\d{1,20}(?:,\d{3}){0,9}(?:\.\d{1,20})?)(?:[.,;!]?(?:\s|$))")
SOLVED, TRIED, NOTHING = 1.0, 0.1, 0.0


class CountdownReward(RewardFn):
    """1 for an equation that reaches the target, 0.1 for any equation in answer tags, else 0.

    The truth is an object {"target": 24, "numbers": [1, 2, 3, 4]}, or its JSON text.
    """

    in_thread: ClassVar[bool] = False

    def __call__(self, *, response: str, truth: JsonValue) -> dict[str, float]:
        """Returns part `score`."""
        answers = tagged(response, "answer")
        if not answers:
            return {"score": NOTHING}
        equation, *results = answers[-1].split("=")
        goal = _goal(truth)
        solved = _solves(equation.strip(), goal) and all(_is(text, goal) for text in results)
        return {"score": SOLVED if solved else TRIED}


@dataclass(frozen=True, slots=True)
class Goal:
    """The target and the numbers to reach it with."""

    target: Fraction
    numbers: Counter[Fraction]


def _goal(truth: JsonValue) -> Goal:
    data = json.loads(truth if isinstance(truth, str) else json.dumps(truth))
    numbers = Counter(Fraction(str(number)) for number in data["numbers"])
    return Goal(Fraction(str(data["target"])), numbers)


def _solves(equation: str, goal: Goal) -> bool:
    numbers: list[Fraction] = []
    try:
        value = _evaluate(ast.parse(equation[:MAX_CHARACTERS], mode="eval").body, numbers)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return False
    return Counter(numbers) == goal.numbers and value == goal.target


def _is(result: str, goal: Goal) -> bool:
    """Returns true if the number behind the equals sign is the target."""
    found = _RESULT.match(result)
    return found is not None and Fraction(found[1].replace(",", "")) == goal.target


def _evaluate(node: ast.expr, numbers: list[Fraction]) -> Fraction:
    """Evaluates numbers and the four operations; appends each number literal to `numbers`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        numbers.append(Fraction(str(node.value)))
        return numbers[-1]
    if isinstance(node, ast.BinOp) and (apply := OPERATORS.get(type(node.op))):
        left, right = _evaluate(node.left, numbers), _evaluate(node.right, numbers)
        return Fraction(apply(left, right))
    raise ValueError("not an equation of the game")
