r"""Helpers of Qwen2.5-Math's evaluation by Trinity-RFT's names."""

import re

from trinity.rewards.math_forms import normalize
from trinity.rewards.math_grading import is_equivalent, last_boxed
from trinity.rft.common.rewards.eval_utils import fix_fracs, parse_with_timeout, verify_math_answer

__all__ = [
    "extract_answer",
    "fix_fracs",
    "math_equal",
    "parse_with_timeout",
    "strip_string",
    "verify_math_answer",
]
_NAMED = re.compile(r"answer is:?\s*([^\n]+)", re.IGNORECASE)


def extract_answer(response_text: str) -> str | None:
    r"""Returns the last `\boxed{}`'s content, else what follows the last `answer is`."""
    if (boxed := last_boxed(response_text)) is not None:
        return boxed
    named = _NAMED.findall(response_text)
    return named[-1].strip().rstrip(".") if named else None


def strip_string(input_str: str | None) -> str | None:
    """Returns an answer without delimiters, fonts and units, in one notation."""
    return None if input_str is None else normalize(fix_fracs(input_str))


def math_equal(prediction: str | None, reference: str | None) -> bool:
    """Returns True if two answers are mathematically equal."""
    if prediction is None or reference is None:
        return False
    return is_equivalent(prediction, reference)
