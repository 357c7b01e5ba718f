r"""Grading of DAPO's answers by Trinity-RFT's names; answers are compared as `math_reward` does."""

from trinity.rft.common.rewards.eval_utils import grade_answer, match_answer

__all__ = ["compute_score", "grade_answer", "match_answer"]


def compute_score(solution_str: str, ground_truth: str) -> float:
    r"""Returns 1 if a solution has a `\boxed{}` that equals the truth, else 0."""
    is_matched, answer = match_answer(str(solution_str))
    return float(is_matched and grade_answer(answer, str(ground_truth))[0])
