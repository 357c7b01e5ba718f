"""The grading process: reads [response, truth] as JSON lines and answers 1 or 0.

python -m trinity.rewards.math_grader
"""

import json
import logging
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

TARGETS = (LatexExtractionConfig(), ExprExtractionConfig())
PARSE_SECONDS = 4
VERIFY_SECONDS = 4


def main() -> None:
    """Grades until the parent closes the pipe."""
    logging.disable(logging.WARNING)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        response, truth = json.loads(line)
        sys.stdout.write("1\n" if matches_truth(response, truth) else "0\n")
        sys.stdout.flush()


def matches_truth(response: str, truth: str) -> bool:
    """Returns true if any parse of the truth equals the answer found in the response."""
    answer = _parse(response)
    return bool(answer) and any(
        verify(gold, answer, timeout_seconds=VERIFY_SECONDS) for gold in _parse_truth(truth)
    )


def _parse_truth(truth: str) -> list[list[object]]:
    """Parses the truth; a bare one needs dollar signs to be parsed as a whole expression."""
    bare = "$" not in truth and "\\boxed" not in truth
    readings = [_parse(f"${truth}$")] if bare else []
    return [gold for gold in [*readings, _parse(truth)] if gold][:1]


def _parse(text: str) -> list[object]:
    return list(parse(text, TARGETS, parsing_timeout=PARSE_SECONDS))


if __name__ == "__main__":
    main()
