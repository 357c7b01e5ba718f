"""The order in which rows are drawn, checked and with its defaults filled in."""

from pydantic import ValidationError

from trinity.config.data_format import DataSelectorConfig
from trinity.config.difficulty import DifficultyConfig
from trinity.config.mode import Mode
from trinity.config.plan_parts import Selector
from trinity.errors import UserError

ANCHORS = 2


def resolve_selector(selector: DataSelectorConfig, seed: int, key: str) -> Selector:
    """Returns the selector; raises UserError if its features or arguments do not fit it."""
    _check_features(selector, key)
    return Selector(
        selector_type=selector.selector_type,
        seed=seed if selector.seed is None else selector.seed,
        feature_keys=selector.feature_keys,
        difficulty=_difficulty(selector, key),
    )


def check_feedback(selector: DataSelectorConfig, mode: Mode, key: str) -> None:
    """Requires a trainer for a selector that learns from its batches.

    Raises: UserError if the selector would learn nothing.
    """
    if selector.selector_type == "difficulty_based" and mode == "explore":
        raise UserError(
            f"{key}.data_selector.selector_type`: difficulty_based learns from the batches of a "
            "trainer, which `mode: explore` has none of: choose another"
        )


def _check_features(selector: DataSelectorConfig, key: str) -> None:
    num_keys, kind = len(selector.feature_keys), selector.selector_type
    if kind == "difficulty_based" and num_keys != ANCHORS:
        raise UserError(
            f"{key}.data_selector.feature_keys` has {num_keys} columns: difficulty_based takes "
            "two, the pass rates of a weak and of a strong model"
        )
    if kind == "offline_easy2hard" and not num_keys:
        raise UserError(
            f"{key}.data_selector.feature_keys` is missing: offline_easy2hard sorts by it, "
            "name a column of numbers that are larger for easier rows"
        )
    if num_keys and kind not in ("difficulty_based", "offline_easy2hard"):
        raise UserError(f"{key}.data_selector.feature_keys` means nothing to {kind}: remove it")


def _difficulty(selector: DataSelectorConfig, key: str) -> DifficultyConfig | None:
    if selector.selector_type != "difficulty_based":
        if selector.kwargs:
            raise UserError(
                f"{key}.data_selector.kwargs` means nothing to {selector.selector_type}: remove it"
            )
        return None
    try:
        return DifficultyConfig.model_validate(selector.kwargs)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        known = ", ".join(DifficultyConfig.model_fields)
        raise UserError(
            f"{key}.data_selector.kwargs.{name}`: {first['msg'].lower()}; the arguments of "
            f"difficulty_based are {known}"
        ) from error
