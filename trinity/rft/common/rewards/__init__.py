"""Rewards by Trinity-RFT's names, for files that were written for it.

@REWARD_FUNCTIONS.register_module("short")
class Short(RewardFn):
    def __init__(self, **kwargs): ...
    def __call__(self, response, truth=None, **kwargs): return {"short": float(len(response) < 9)}

The built-in rewards compute as `trinity.rewards` does, and take Trinity-RFT's arguments.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from trinity.plugins import REWARDS
from trinity.rewards.accuracy_reward import AccuracyReward
from trinity.rewards.countdown_reward import CountdownReward
from trinity.rewards.math_dapo_reward import MathDapoReward
from trinity.rewards.reward import RewardFn
from trinity.rewards.tags import EARLY_LAYOUTS, STRICT
from trinity.rft.common.rewards import eval_utils
from trinity.rft.common.rewards.eval_utils import (
    compute_score_v0,
    simple_answer_parser,
    validate_think_pattern,
)

REWARD_FUNCTIONS = REWARDS
_SCORE = 0.1


class FormatReward(RewardFn):
    """Plus 0.1 if the beginning of the response matches the pattern, else minus 0.1."""

    def __init__(self, pattern: str | None = None) -> None:
        super().__init__()
        self.pattern = pattern or STRICT

    def __call__(self, /, response: str, **kwargs: Any) -> dict[str, float]:
        """Returns part `format_score`."""
        del kwargs
        layout = EARLY_LAYOUTS.get(self.pattern)
        if layout is not None:
            matches = layout.matches(response)
        else:
            matches = re.match(self.pattern, response, re.DOTALL | re.MULTILINE) is not None
        return {"format_score": _SCORE if matches else -_SCORE}


class MathRewardFn(RewardFn):
    """The accuracy of the text in answer tags, and the format."""

    DEFAULT_FORMAT_PATTERN = r".*?<think>.*?</think>\s*<answer>.*?</answer>\s*$"
    DEFAULT_ANSWER_PARSER = staticmethod(simple_answer_parser)

    def __init__(
        self,
        answer_parser: Callable[[str], Any] = simple_answer_parser,
        pattern: str = DEFAULT_FORMAT_PATTERN,
    ) -> None:
        super().__init__()
        self.accuracy_reward = AccuracyReward(answer_parser)
        self.format_reward = FormatReward(pattern)

    def __call__(
        self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any
    ) -> dict[str, float]:
        """Returns parts `accuracy` and `format_score`."""
        del kwargs
        accuracy = self.accuracy_reward(response, prompt, truth=truth)
        return {**accuracy, **self.format_reward(response)}


class MathBoxedRewardFn(RewardFn):
    """1 for a boxed answer that is the truth; a deduction for thoughts outside of their tags."""

    def __call__(
        self,
        response: str,
        truth: Any = None,
        with_think: bool | None = False,
        format_score_coef: float | None = _SCORE,
        **kwargs: Any,
    ) -> dict[str, float]:
        """Returns parts `accuracy` and `format_score`."""
        del kwargs
        is_bad = bool(with_think) and not validate_think_pattern(response)
        return {
            "accuracy": compute_score_v0(response, str(truth)),
            "format_score": -(format_score_coef or _SCORE) if is_bad else 0.0,
        }


class CountDownRewardFn(RewardFn):
    """1 for an equation that reaches the target, 0.1 for any other equation, else 0."""

    def __call__(
        self, response: str, prompt: str | None = None, truth: Any = None, **kwargs: Any
    ) -> dict[str, float]:
        """Returns part `score`."""
        del prompt, kwargs
        return CountdownReward()(response=response, truth=truth)


class MathDAPORewardFn(RewardFn):
    """Plus or minus 1 for the answer, with DAPO's penalty for long responses."""

    def __init__(
        self,
        enable_overlong_penalty: bool | None = None,
        penalty_factor: float | None = None,
        max_response_length: int | None = None,
        cache_length: int | None = None,
    ) -> None:
        super().__init__()
        self.enable_overlong_penalty = bool(enable_overlong_penalty)
        self._reward = MathDapoReward(
            enable_overlong_penalty=self.enable_overlong_penalty,
            penalty_factor=1.0 if penalty_factor is None else penalty_factor,
            max_response_length=max_response_length,
            cache_length=cache_length,
        )

    def __call__(
        self, response: str, response_token: Any, truth: str, **kwargs: Any
    ) -> dict[str, float]:
        """Returns parts `accuracy` and `format_score`."""
        del kwargs
        parts = self._reward(response=response, truth=truth, response_length=0)
        if self.enable_overlong_penalty:
            parts["format_score"] = self.compute_overlong_penalty(response_token)
        return parts

    def compute_overlong_penalty(self, response_token: Any) -> float:
        """Returns the penalty of a response of so many tokens, at most 0."""
        length = len(response_token)
        return self._reward(response="", truth="", response_length=length)["format_score"]


CLASSES: Mapping[str, type[RewardFn]] = {
    "accuracy_reward": AccuracyReward,
    "countdown_reward": CountDownRewardFn,
    "format_reward": FormatReward,
    "math_boxed_reward": MathBoxedRewardFn,
    "math_dapo_reward": MathDAPORewardFn,
    "math_reward": MathRewardFn,
}
"""Trinity-RFT's classes by the name of the reward, for workflows that make them themselves."""


def __getattr__(name: str) -> Any:
    """Returns a helper, which other modules of Trinity-RFT have as well."""
    if name not in vars(eval_utils):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return vars(eval_utils)[name]
