"""The order of tasks: by weighted scores, by chance, or as they came."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity.errors import UserError
from trinity.task_operators.task_pipeline import Ordering
from trinity.task_operators.task_rows import FloatVector

IntVector = npt.NDArray[np.int64]
DEFAULT_WEIGHTS = {"difficulty": -0.7, "diversity": 0.8, "usage_frequency": -0.5, "quality": 1.0}
"""Those of Trinity-RFT; one that nothing measures counts for nothing."""
MEASURES: Mapping[str, Mapping[str, int]] = {
    "quality": {
        "alnum_ratio": 1,
        "char_rep_ratio": -1,
        "flagged_words_ratio": -1,
        "special_char_ratio": -1,
        "stopwords_ratio": 1,
        "word_rep_ratio": -1,
        "llm_quality_score": 1,
    },
    "difficulty": {"perplexity": 1, "lang_score": -1, "llm_difficulty_score": 1},
    "usage_frequency": {"consumed_cnt": 1},
    "diversity": {},
}
"""Data-Juicer's statistics that each is the mean of, -1 where less is more; Trinity-RFT's."""


def used_weights(ordering: Ordering, names: set[str]) -> dict[str, float]:
    """The weights of what was measured.

    Raises: UserError for a weight that was asked for and of which nobody measured anything.
    """
    weights = ordering.priority_weights or DEFAULT_WEIGHTS
    used = {name: weight for name, weight in weights.items() if _measures(name, names)}
    for name in weights:
        if name not in used and name not in MEASURES:
            known = ", ".join(sorted(names)) or "none"
            raise UserError(
                f"`priority_weights.{name}` is measured by no operator: the scores are {known}"
            )
    return used


def order_of(
    ordering: Ordering, scores: Mapping[str, FloatVector], weights: Mapping[str, float], size: int
) -> IntVector:
    """Places of the tasks that are kept, in the order in which they come, [K]."""
    places_N: IntVector = np.arange(size)
    if ordering.method == "keep":
        return _best(places_N, ordering.top_k)
    if ordering.method == "shuffle":
        shuffled = np.random.Generator(np.random.PCG64(ordering.seed % 2**64)).permutation(size)
        return _best(shuffled, ordering.top_k)
    priorities_N = np.zeros(size)
    for name, weight in weights.items():
        priorities_N += weight * _score(name, scores)
    sorted_N: IntVector = np.argsort(-priorities_N, kind="stable")
    best_K = _best(sorted_N, ordering.top_k)
    if ordering.method == "sort":
        return best_K
    layers = range(ordering.folding_layers)
    return np.concatenate([best_K[layer :: ordering.folding_layers] for layer in layers])


def _best(places_N: IntVector, top_k: int) -> IntVector:
    return places_N if top_k < 0 else places_N[:top_k]


def _measures(name: str, names: set[str]) -> dict[str, int]:
    """What is measured of it, with the sign; a score of its own name comes first."""
    if name in names:
        return {name: 1}
    return {one: sign for one, sign in MEASURES.get(name, {}).items() if one in names}


def _score(name: str, scores: Mapping[str, FloatVector]) -> FloatVector:
    """The mean of what is measured of it, each from 0 to 1."""
    measures = _measures(name, set(scores))
    parts = [
        _normalized(scores[one]) if sign > 0 else 1 - _normalized(scores[one])
        for one, sign in measures.items()
    ]
    mean_N: FloatVector = np.mean(parts, axis=0)
    return mean_N


def _normalized(score_N: FloatVector) -> npt.NDArray[np.floating[Any]]:
    """From 0, the least, to 1, the most; what was not measured is 0."""
    if not np.isfinite(score_N).any():
        return np.zeros(len(score_N))
    least, most = np.nanmin(score_N), np.nanmax(score_N)
    if least == most:
        return np.zeros(len(score_N))
    return np.nan_to_num((score_N - least) / (most - least))
