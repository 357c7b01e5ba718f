r"""Helpers of Qwen2.5-Math's evaluation by Trinity-RFT's names."""

import re

from trinity.common.rewards.eval_utils import verify_math_answer as verify_math_answer
from trinity.rewards.math_answers import normalize
from trinity.rewards.math_grading import is_equivalent, last_boxed

_NAMED = re.compile(r"answer is:?\s*([^\n]+)", re.IGNORECASE)
_BARE = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))")


def extract_answer(response_text: str) -> str | None:
    r"""Returns the last `\boxed{}`'s content, else what follows the last `answer is`."""
    if (boxed := last_boxed(response_text)) is not None:
        return boxed
    named = _NAMED.findall(response_text)
    return named[-1].strip().rstrip(".") if named else None


def fix_fracs(string: str) -> str:
    r"""Puts the arguments of `\frac` into braces: `\frac12` becomes `\frac{1}{2}`."""
    return _BARE.sub(_in_braces, string)


def _in_braces(found: re.Match[str]) -> str:
    above, below = found[1] or found[2] or "", found[3] or found[4] or ""
    return f"\\frac{{{above}}}{{{below}}}"


def strip_string(input_str: str | None) -> str | None:
    """Returns an answer without delimiters, fonts and units, in one notation."""
    return None if input_str is None else normalize(fix_fracs(input_str))


def math_equal(prediction: str | None, reference: str | None) -> bool:
    """Returns True if two answers are mathematically equal."""
    if prediction is None or reference is None:
        return False
    return is_equivalent(prediction, reference)
