"""The order in which rows are drawn, checked and with its defaults filled in."""

from pydantic import ValidationError

from trinity.config.data_format import DataSelectorConfig
from trinity.config.difficulty import DifficultyConfig
from trinity.config.mode import Mode
from trinity.config.plan_parts import Selector
from trinity.errors import UserError

ANCHORS = 2


def resolve_selector(given: DataSelectorConfig, seed: int, key: str) -> Selector:
    """Raises: UserError when its features or arguments do not go with the selector."""
    _check_features(given, key)
    return Selector(
        selector_type=given.selector_type,
        seed=seed if given.seed is None else given.seed,
        feature_keys=given.feature_keys,
        difficulty=_difficulty(given, key),
    )


def check_feedback(given: DataSelectorConfig, mode: Mode, key: str) -> None:
    """What was learned is fixed by the batches of a trainer, which must be there for that.

    Raises: UserError for a selector that would learn nothing.
    """
    if given.selector_type == "difficulty_based" and mode == "explore":
        raise UserError(
            f"{key}.data_selector.selector_type`: difficulty_based learns from the batches of a "
            "trainer, which `mode: explore` has none of: choose another"
        )


def _check_features(given: DataSelectorConfig, key: str) -> None:
    num_keys, kind = len(given.feature_keys), given.selector_type
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


def _difficulty(given: DataSelectorConfig, key: str) -> DifficultyConfig | None:
    if given.selector_type != "difficulty_based":
        if given.kwargs:
            raise UserError(
                f"{key}.data_selector.kwargs` means nothing to {given.selector_type}: remove it"
            )
        return None
    try:
        return DifficultyConfig.model_validate(given.kwargs)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        known = ", ".join(DifficultyConfig.model_fields)
        raise UserError(
            f"{key}.data_selector.kwargs.{name}`: {first['msg'].lower()}; the arguments of "
            f"difficulty_based are {known}"
        ) from error
