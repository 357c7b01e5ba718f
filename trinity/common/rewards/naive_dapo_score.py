r"""Grading of DAPO's answers by Trinity-RFT's names; answers are compared as `math_reward` does."""

from trinity.rewards.math_answers import normalize
from trinity.rewards.math_grading import is_equivalent, last_boxed


def match_answer(response: str) -> tuple[bool, str]:
    r"""Returns whether the answer after thoughts is a `\boxed{}`, and its content or all of it."""
    answer = response.split("</think>")[-1]
    boxed = last_boxed(answer)
    return boxed is not None, answer if boxed is None else boxed


def grade_answer(given_answer: str, ground_truth: str) -> tuple[bool, str]:
    """Returns whether an answer equals the truth, and the answer in its normal form."""
    if not given_answer:
        return False, ""
    return is_equivalent(given_answer, str(ground_truth)), normalize(given_answer)


def compute_score(solution_str: str, ground_truth: str) -> float:
    r"""Returns 1 if a solution has a `\boxed{}` that equals the truth, else 0."""
    is_matched, answer = match_answer(str(solution_str))
    return float(is_matched and grade_answer(answer, str(ground_truth))[0])
