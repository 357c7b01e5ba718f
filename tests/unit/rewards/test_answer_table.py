"""Answers with their truths, decided by hand before the code was asked: see `answers.txt`."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sympy

from tests.unit.subtests import as_subtests
from trinity.plugins import REWARDS
from trinity.rewards import math_grader
from trinity.rewards.math_grading import is_right_answer
from trinity.rewards.reward import BoundReward

TABLE = Path(__file__).with_name("answers.txt")
IN = {
    "tags": ("math_reward", "<think>well</think><answer>{}</answer>"),
    "prose": ("accuracy_reward", "{}"),
}


def rows() -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Yields where the answers stand, the truth, right answers and wrong ones."""
    place = ""
    for line in re.sub(r"\n +@", " @", TABLE.read_text(encoding="utf-8")).splitlines():
        if heading := re.match(r"\[(\w+)\]", line):
            place = heading[1]
        elif line and not line.startswith("#"):
            truth, right, wrong = (part.strip() for part in f"{line} @@".split("@@")[:3])
            yield place, truth, answers_in(right), answers_in(wrong)


def answers_in(side: str) -> list[str]:
    return side.split(" @ ") if side else []


def is_paid(place: str, answer: str, truth: str) -> bool:
    if place == "boxed":
        return is_right_answer(answer, truth)
    name, form = IN[place]
    reward = BoundReward(REWARDS.get(name), {}, name)
    response = form.format(re.sub(r"\\n(?!e[qg])", "\n", answer))
    return reward(response=response, truth=truth)["accuracy"] == 1.0


@as_subtests(("place", "truth", "right", "wrong"), rows())
def test_right_answers_are_paid_and_wrong_ones_are_not(
    place: str, truth: str, right: list[str], wrong: list[str]
) -> None:
    assert [answer for answer in right if not is_paid(place, answer, truth)] == []
    assert [answer for answer in wrong if is_paid(place, answer, truth)] == []


def test_control_the_table_is_read_whole() -> None:
    counts = [sum(len(row[side]) for row in rows()) for side in (2, 3)]
    assert len(list(rows())) > 400 and min(counts) > 800


@pytest.mark.parametrize(
    ("latex", "value"),
    [
        (r"e^{i\pi}", sympy.exp(sympy.I * sympy.pi)),
        (r"(2-i)^2+1+i", (2 - sympy.I) ** 2 + 1 + sympy.I),
        (r"\frac{13}{2-3i}", 13 / (2 - 3 * sympy.I)),
        (r"2e^{i\pi/3}", 2 * sympy.exp(sympy.I * sympy.pi / 3)),
        (r"\sqrt{-4}", sympy.sqrt(-4)),
    ],
)
def test_complex_numbers_are_those_of_sympy(latex: str, value: sympy.Expr) -> None:
    real, imaginary = sympy.expand(value, complex=True).as_real_imag()
    assert is_right_answer(latex, f"{sympy.latex(real)} + ({sympy.latex(imaginary)}) i")
    assert not is_right_answer(latex, f"{sympy.latex(real)} + ({sympy.latex(imaginary + 1)}) i")


ENDLESS = [
    *(r"(10^9)!", r"9^{9^{9}}", r"2^9^9^9", r"\binom{10^9}{5\cdot 10^8}", r"\prod_{k=1}^{10^7} k"),
    *(r"\frac{(10^6)!}{(10^6-1)!}", r"\sum_{k=1}^{10^8}\sin(k^2)", r"(a+b+c+d+e)^{60}"),
    *("5!!!", r"7^{10^6} \mod 10", r"e^{e^{e^{e^{e}}}}", r"\gcd(10^{10^{8}}, 3)", r"\cosh(10^{9})"),
    *(r"\Gamma(10^{9})", r"10^{-10^{9}}", r"\left(\frac{99}{100}\right)^{10^{9}}", r"1e999999999"),
    *("(" * 300 + "1" + ")" * 300, r"\sqrt{" * 60 + "2" + "}" * 60, "1+" * 1900 + "1"),
    *("[" * 300 + "1,2" + "]" * 300, ", ".join(f"x^{{{i}}}+{i}" for i in range(200))),
    *(r"\begin{pmatrix}(10^9)!&1\\1&1\end{pmatrix}", "2^{10^9}", "2^{1000000000}", "99999!"),
]


@pytest.fixture(scope="module")
def parser() -> None:
    math_grader._load_parser()
    math_grader.is_equal(r"\sin x + \frac{1}{2}", "3")


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("answer", ENDLESS)
def test_what_would_never_end_is_not_begun(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit such an answer would hold the test until it times out."""
    for limit in ("GRADE_SECONDS", "LAST_SECONDS"):
        monkeypatch.setattr(math_grader, limit, 10_000)
    assert not math_grader._is_right(answer, r"\frac{7}{3}", is_whole=True)
    assert is_right_answer(answer, answer)


def test_answers_that_never_end_keep_no_grader_from_others() -> None:
    answers = [*ENDLESS[:8], r"\frac{1}{2}", *ENDLESS[8:16], "0.50"]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda answer: is_right_answer(answer, "1/2"), answers))
    assert [answers[i] for i, verdict in enumerate(verdicts) if verdict] == [r"\frac{1}{2}", "0.50"]
