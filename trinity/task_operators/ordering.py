"""The order of tasks: by weighted scores, by chance, or as they came."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from trinity.errors import UserError
from trinity.task_operators.columns import on_disk, parts_of
from trinity.task_operators.sorting import Keys, rising_keys, rising_places, sorted_places
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

    Raises: UserError for a weight that was asked for and of which nobody measured anything; of
        Trinity-RFT's own it is enough that one is measured.
    """
    weights = ordering.priority_weights or DEFAULT_WEIGHTS
    used = {name: weight for name, weight in weights.items() if _measures(name, names)}
    for name in weights:
        if name not in used and name not in MEASURES:
            known = ", ".join(sorted(names)) or "none"
            raise UserError(
                f"`priority_weights.{name}` is measured by no operator: the scores are {known}"
            )
    if ordering.priority_weights and not used:
        asked = ", ".join(f"`priority_weights.{name}`" for name in weights)
        known = ", ".join(sorted(names)) or "none"
        raise UserError(f"no operator measures {asked}: the scores are {known}")
    return used


def order_of(
    ordering: Ordering, scores: Mapping[str, FloatVector], weights: Mapping[str, float], size: int
) -> IntVector:
    """Places of the tasks that are kept, in the order in which they come, [K]; on the disk."""
    if ordering.method == "keep":
        return _best(rising_places(size), ordering.top_k)
    if ordering.method == "shuffle":
        places_N = rising_places(size)
        np.random.Generator(np.random.PCG64(ordering.seed % 2**64)).shuffle(places_N)
        return _best(places_N, ordering.top_k)
    best_K = _best(sorted_places(_keys(scores, weights, size)), ordering.top_k)
    return best_K if ordering.method == "sort" else _folded(best_K, ordering.folding_layers)


def _keys(scores: Mapping[str, FloatVector], weights: Mapping[str, float], size: int) -> Keys:
    """They rise as priorities fall."""
    bounds = {name: _bounds(score_N) for name, score_N in scores.items()}
    keys_N = on_disk(size, np.uint64)
    for part in parts_of(size):
        normalized = {name: _normalized(scores[name][part], bounds[name]) for name in scores}
        priorities = np.zeros(part.stop - part.start)
        for name, weight in weights.items():
            priorities += weight * _score(name, normalized)
        keys_N[part] = rising_keys(-priorities)
    return keys_N


def _folded(best_K: IntVector, num_layers: int) -> IntVector:
    folded_K = on_disk(len(best_K), np.int64)
    first = 0
    for layer in range(num_layers):
        own = best_K[layer::num_layers]
        folded_K[first : first + len(own)] = own
        first += len(own)
    return folded_K


def _best(places_N: IntVector, top_k: int) -> IntVector:
    return places_N if top_k < 0 else places_N[:top_k]


def _measures(name: str, names: set[str]) -> dict[str, int]:
    """What is measured of it, with the sign; a score of its own name comes first."""
    if name in names:
        return {name: 1}
    return {one: sign for one, sign in MEASURES.get(name, {}).items() if one in names}


def _score(name: str, normalized: Mapping[str, FloatVector]) -> FloatVector:
    """The mean of what is measured of it, each from 0 to 1."""
    measures = _measures(name, set(normalized))
    parts = [normalized[one] if sign > 0 else 1 - normalized[one] for one, sign in measures.items()]
    mean_N: FloatVector = np.mean(parts, axis=0)
    return mean_N


def _bounds(score_N: FloatVector) -> tuple[float, float]:
    """The least and the most; the same where nothing tells the rows apart."""
    least, most, any_finite = np.nan, np.nan, False
    for part in parts_of(len(score_N)):
        own = score_N[part]
        any_finite |= bool(np.isfinite(own).any())
        least, most = np.fmin(least, np.fmin.reduce(own)), np.fmax(most, np.fmax.reduce(own))
    return (float(least), float(most)) if any_finite else (0.0, 0.0)


def _normalized(score_N: FloatVector, bounds: tuple[float, float]) -> FloatVector:
    """From 0, the least, to 1, the most; what was not measured is 0."""
    least, most = bounds
    if least == most:
        return np.zeros(len(score_N))
    normalized_N: FloatVector = np.nan_to_num((score_N - least) / (most - least))
    return normalized_N
