"""Rewards by the name of the data set that a row comes from, as veRL chooses them.

    row_reward("openai/gsm8k")  # "gsm8k_reward"

Rows that veRL's scripts write name their data set in `data_source`.
"""

from collections.abc import Mapping

from trinity.errors import UserError
from trinity.plugins import REWARDS

_REWARDS: Mapping[str, tuple[str, ...]] = {
    "gsm8k_reward": ("openai/gsm8k",),
    "math_boxed_reward": (
        "lighteval/MATH",
        "DigitalLearningGmbH/MATH-lighteval",
        "HuggingFaceH4/MATH-500",
        "numina_aops_forum",
        "numina_synthetic_math",
        "numina_amc_aime",
        "numina_synthetic_amc",
        "numina_cn_k12",
        "numina_olympiads",
    ),
    "math_dapo_reward": ("math_dapo", "math", "math_dapo_reasoning"),
    "search_answer_reward": (
        "searchR1_nq",
        "searchR1_triviaqa",
        "searchR1_popqa",
        "searchR1_hotpotqa",
        "searchR1_2wikimultihopqa",
        "searchR1_musique",
        "searchR1_bamboogle",
    ),
}
REWARD_BY_SOURCE: Mapping[str, str] = {
    source: reward for reward, sources in _REWARDS.items() for source in sources
}
_AIME = "aime"
"""Begins the names of data sets that are scored like `math_dapo`."""
_CODE = "its answers are programs, and nothing here runs them: name a reward of your own"
_ABSENT: Mapping[str, str] = {
    **dict.fromkeys(("codecontests", "apps", "codeforces", "taco"), _CODE),
    "hiyouga/geometry3k": "it asks about images, and prompts here are text alone",
}


def row_reward(name: str) -> str:
    """Returns the reward for the name in a row: that of a data set, or itself.

    Raises: UserError for a data set that veRL scores and no reward here does.
    """
    if REWARDS.is_registered(name):
        return name
    if why := _ABSENT.get(name):
        raise UserError(f"there is no reward for rows of {name!r}: {why}")
    return "math_dapo_reward" if name.startswith(_AIME) else REWARD_BY_SOURCE.get(name, name)
