"""Accuracy of the text in answer tags, compared with several true answers."""

import re
import string
from typing import ClassVar

from trinity.rewards.reward import RewardFn
from trinity.rewards.tags import tagged
from trinity.types import JsonValue

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class SearchAnswerReward(RewardFn):
    """`accuracy` is 1 if the last `<answer>` is one of the true answers, else 0.

    The truth is a text, a list of texts, or an object with such a `target`. Case, punctuation and
    articles do not count.
    """

    in_thread: ClassVar[bool] = False

    def __call__(self, *, response: str, truth: JsonValue) -> dict[str, float]:
        """Returns part `accuracy`."""
        answers = tagged(response, "answer")
        given = _plain(answers[-1]) if answers else None
        return {"accuracy": float(given in [_plain(text) for text in _targets(truth)])}


def _targets(truth: JsonValue) -> list[str]:
    value = truth.get("target") if isinstance(truth, dict) else truth
    return [str(text) for text in value] if isinstance(value, list) else [str(value)]


def _plain(text: str) -> str:
    bare = _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION))
    return " ".join(bare.split())
