"""Values of a row by the name of their column, and rewards by that of the data set in a column.

    column_value({"reward_model": {"ground_truth": "72"}}, "reward_model.ground_truth")  # "72"
    row_reward("openai/gsm8k")                                                   # "gsm8k_reward"

A column whose name has a dot comes before a path into one, which leads into the JSON text of an
object, too. Rows that veRL's scripts write name their data set in `data_source`, and veRL chooses
their reward by it.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from trinity.errors import UserError
from trinity.plugins import REWARDS

Value = TypeVar("Value")
_REWARDS: Mapping[str, tuple[str, ...]] = {
    "gsm8k_reward": ("openai/gsm8k",),
    "geo3k_reward": ("hiyouga/geometry3k",),
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
}


def column_value(row: Mapping[str, Value], path: str) -> Value:
    """Returns the value of a column, or of a key inside of it, each part of the path after a dot.

    Raises: KeyError when the row has no such value.
    """
    if path in row:
        return row[path]
    name, _, rest = path.partition(".")
    inner = _object_of(row[name]) if rest else row[name]
    if not rest or not isinstance(inner, Mapping):
        raise KeyError(path)
    found: Value = column_value(inner, rest)
    return found


def _object_of(value: Any) -> Any:
    """Returns the object that a JSON text holds; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def has_column(row: Mapping[str, object], path: str) -> bool:
    """Returns true if the row has a value there, which may be null."""
    try:
        column_value(row, path)
    except KeyError:
        return False
    return True


def optional_column(row: Mapping[str, Value], path: str) -> Value | None:
    """Returns the value there, or None if it is missing or null."""
    return column_value(row, path) if has_column(row, path) else None


def row_images(row: Mapping[str, Value], column: str | None) -> list[Value] | None:
    """Returns the images in a column of a stored row; None for a format without images."""
    found = optional_column(row, column) if column else None
    return (found if isinstance(found, list) else []) if column else None


def column_names(row: Mapping[str, object]) -> list[str]:
    """Returns the names that a row has, then paths to the keys inside of its columns."""
    return [*row, *(f"{name}.{key}" for name in row for key in _keys(row[name]))]


def _keys(value: object) -> list[str]:
    return [str(key) for key in value] if isinstance(value, Mapping) else []


def row_reward(name: str) -> str:
    """Returns the reward for the name in a row: that of a data set, or itself.

    Raises: UserError for a data set that veRL scores and no reward here does.
    """
    if REWARDS.is_registered(name):
        return name
    if why := _ABSENT.get(name):
        raise UserError(f"there is no reward for rows of {name!r}: {why}")
    return "math_dapo_reward" if name.startswith(_AIME) else REWARD_BY_SOURCE.get(name, name)
