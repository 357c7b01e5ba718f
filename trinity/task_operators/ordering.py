"""The order of tasks: by weighted scores, random, or unchanged."""

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
"""Trinity-RFT's weights; one without a measured score has no effect."""
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
"""Data-Juicer statistics averaged for each score, -1 where less is better; from Trinity-RFT."""


def used_weights(ordering: Ordering, names: set[str]) -> dict[str, float]:
    """Returns the weights of measured scores.

    Raises: UserError for a requested weight whose score no operator measured; of Trinity-RFT's own
        scores, one measured score is enough.
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
        requested = ", ".join(f"`priority_weights.{name}`" for name in weights)
        known = ", ".join(sorted(names)) or "none"
        raise UserError(f"no operator measures {requested}: the scores are {known}")
    return used


def order_of(
    ordering: Ordering, scores: Mapping[str, FloatVector], weights: Mapping[str, float], size: int
) -> IntVector:
    """Returns the indices of the kept tasks in their order, [K]; stored on disk."""
    if ordering.method == "keep":
        return _best(rising_places(size), ordering.top_k)
    if ordering.method == "shuffle":
        places_N = rising_places(size)
        np.random.Generator(np.random.PCG64(ordering.seed % 2**64)).shuffle(places_N)
        return _best(places_N, ordering.top_k)
    best_K = _best(sorted_places(_keys(scores, weights, size)), ordering.top_k)
    return best_K if ordering.method == "sort" else _folded(best_K, ordering.folding_layers)


def _keys(scores: Mapping[str, FloatVector], weights: Mapping[str, float], size: int) -> Keys:
    """Returns sort keys, which rise as priorities fall."""
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
    """Returns the measured statistics of a score with their signs; a score of that name wins."""
    if name in names:
        return {name: 1}
    return {stat: sign for stat, sign in MEASURES.get(name, {}).items() if stat in names}


def _score(name: str, normalized: Mapping[str, FloatVector]) -> FloatVector:
    """Returns the mean of its measured statistics, each from 0 to 1."""
    measures = _measures(name, set(normalized))
    parts = [normalized[s] if sign > 0 else 1 - normalized[s] for s, sign in measures.items()]
    mean_N: FloatVector = np.mean(parts, axis=0)
    return mean_N


def _bounds(score_N: FloatVector) -> tuple[float, float]:
    """Returns minimum and maximum; both 0 if there is no finite value."""
    least, most, any_finite = np.nan, np.nan, False
    for part in parts_of(len(score_N)):
        own = score_N[part]
        any_finite |= bool(np.isfinite(own).any())
        least, most = np.fmin(least, np.fmin.reduce(own)), np.fmax(most, np.fmax.reduce(own))
    return (float(least), float(most)) if any_finite else (0.0, 0.0)


def _normalized(score_N: FloatVector, bounds: tuple[float, float]) -> FloatVector:
    """Scales scores from 0, the minimum, to 1, the maximum; missing ones become 0."""
    least, most = bounds
    if least == most:
        return np.zeros(len(score_N))
    normalized_N: FloatVector = np.nan_to_num((score_N - least) / (most - least))
    return normalized_N
