"""Mathematical equality, in a process that can be killed."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.subtests import as_subtests
from trinity.rewards.math_forms import NUMBER, normalize
from trinity.rewards.math_grader import OutOfTime, limited
from trinity.rewards.math_grading import GraderPool, is_equivalent
from trinity.rewards.math_units import multiplied_out

NEVER_ENDS = "$9^{9^{9^{9}}}$"


@as_subtests(
    ("response", "truth"),
    [
        ("42", "42"),
        ("42.0", "42"),
        ("1,000", "1000"),
        (r"so it is $\frac{1}{2}$", "0.5"),
        (r"\boxed{x^2+1}", "1+x^2"),
        ("18 dollars", "18"),
        ("1000", "1 000"),
        ("$ -1,234,567.50 $", "- 1234567.5"),
        (".5", "0.50"),
        ("5.", "+5"),
        ("1E3", "1000"),
        ("So there are 5 million people.", "5000000"),
        (r"I counted 5 thousand! So it is $42$", "42"),
        (r"Of 2^5 million it is $42$", "42"),
        ("It takes 45 min.", "45"),
        ("2, 1", "1, 2"),
        ("1, 2", "1,2"),
        ("-1, 0.5", "$0.5, -1$"),
    ],
)
def test_the_same_value_in_another_form_is_right(response: str, truth: str) -> None:
    assert is_equivalent(response, truth)


@as_subtests(
    ("response", "truth"),
    [
        ("", "0"),
        ("41", "42"),
        ("no idea", r"\frac{3}{4}"),
        ("x", "y"),
        ("12", "1,2"),
        ("1,2", "12"),
        ("0,5", "5"),
        ("3.52", "3.5,2"),
        ("1 2", "12"),
        ("1,2,3", "1,2"),
        ("1,0000", "10000"),
        ("So there are 5 million people.", "5"),
    ],
)
def test_another_value_is_wrong(response: str, truth: str) -> None:
    assert not is_equivalent(response, truth)


def test_long_rows_of_numbers_take_no_time() -> None:
    for text in ("1" * 20_000, "111," * 5_000, "1 111" * 5_000, "1 , " * 5_000, "1e5" * 5_000):
        assert NUMBER.fullmatch(text + "x") is None
        assert normalize(text + "x")


def test_words_that_repeat_themselves_multiply_nothing() -> None:
    """Each would be looked at once for each other one."""
    text = "5" + " million" * 50_000
    assert multiplied_out(text) == text


def test_threads_may_grade_at_the_same_time() -> None:
    with ThreadPoolExecutor(4) as threads:
        verdicts = threads.map(
            lambda n: is_equivalent(f"$\\frac{{{n}}}{{2}}$", str(n / 2)), range(8)
        )
        assert all(verdicts)


def test_an_expression_that_never_ends_is_wrong_and_the_next_is_graded() -> None:
    graders = GraderPool(1, grade_seconds=2.5)
    try:
        assert not graders.grade(NEVER_ENDS, r"\frac{3}{4}")
        assert graders.grade("$0.75$", r"\frac{3}{4}")
    finally:
        graders.stop_processes()


def test_waiting_for_the_processor_takes_none_of_a_graders_time() -> None:
    with limited(0.05, 60):
        time.sleep(0.2)
    with pytest.raises(OutOfTime), limited(0.05, 60):
        while True:
            pass


def test_one_long_call_ends_the_process_and_nothing_else() -> None:
    begin = (
        "import signal, sys; from trinity.rewards.math_grader import limited\n"
        "signal.signal(signal.SIGPROF, signal.SIG_IGN)\n"
        "with limited(50, 0.1): 3 ** (3 ** 17)\n"
    )
    ended = subprocess.run([sys.executable, "-c", begin], timeout=60)
    assert ended.returncode == -signal.SIGXCPU


def test_a_limit_of_the_machine_on_processor_seconds_is_kept() -> None:
    begin = (
        "import resource; from trinity.rewards.math_grader import limited\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (400, 500))\n"
        "with limited(50, 10_000): print(resource.getrlimit(resource.RLIMIT_CPU))\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", begin], timeout=60, capture_output=True, text=True
    )
    assert ended.stdout.splitlines() == ["(500, 500)", "(400, 500)"], ended.stderr
