"""Random batches with everything that a token advantage may ask for."""

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, TokenBatch


def random_batch(
    seed: int,
    *,
    num_rows: int = 14,
    num_tokens: int = 23,
    gaps: bool = True,
    empty_rows: bool = False,
    largest_gap: float = 1.0,
) -> TokenBatch:
    """Ragged rows in groups of all sizes from one up, with masked tokens in the middle."""
    draw = np.random.default_rng(seed)
    lengths_B = draw.integers(1, num_tokens + 1, num_rows)
    mask_BT = random_mask(draw, lengths_B, num_tokens, gaps=gaps)
    if not empty_rows:
        mask_BT[:, 0] = True
    groups_B = draw.integers(0, max(num_rows // 3, 1), num_rows) * 7 + 1
    shape = mask_BT.shape
    inside_BT = np.arange(num_tokens) < lengths_B[:, None]
    log_policy = random_log_policy(draw, shape)
    policy = np.exp(log_policy)
    taken = draw.integers(0, policy.shape[-1], (*shape, 1))
    logprobs_BT = np.take_along_axis(log_policy, taken, axis=-1)[..., 0]
    entropies_BT = -(policy * log_policy).sum(-1)
    return TokenBatch(
        rewards_BT=np.where(inside_BT, draw.normal(size=shape), 0.0),
        mask_BT=mask_BT,
        lengths_B=lengths_B,
        groups_B=groups_B,
        logprobs_BT=logprobs_BT,
        rollout_logprobs_BT=np.minimum(logprobs_BT + largest_gap * draw.uniform(-1, 1, shape), 0.0),
        rollout_is_weights_BT=draw.uniform(0.1, 2.0, shape),
        values_BT=draw.normal(size=shape),
        entropies_BT=entropies_BT,
        collision_BT=np.square(policy).sum(-1),
        discriminator_BT=(np.square(policy) * (entropies_BT[..., None] + log_policy)).sum(-1),
        teacher_logprobs_BT=np.minimum(logprobs_BT + largest_gap * draw.uniform(-1, 1, shape), 0.0),
        reference_logprobs_BT=np.minimum(
            logprobs_BT + np.random.default_rng((seed, 1)).uniform(-1, 1, shape), 0.0
        ),
        baselines_B=draw.normal(size=num_rows),
        reward_parts={
            "accuracy": draw.integers(0, 2, num_rows).astype(np.float64),
            "format": draw.normal(size=num_rows).astype(np.float32).astype(np.float64),
        },
    )


def random_log_policy(draw: np.random.Generator, shape: tuple[int, ...]) -> FloatMatrix:
    """Logarithms of a distribution over five words at each place."""
    logits = 2.0 * draw.normal(size=(*shape, 5))
    log_policy: FloatMatrix = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return log_policy


def random_mask(
    draw: np.random.Generator, lengths_B: np.ndarray, num_tokens: int, *, gaps: bool
) -> BoolMatrix:
    """True within the lengths, but for a third of the tokens where there are gaps."""
    mask_BT: BoolMatrix = np.arange(num_tokens) < lengths_B[:, None]
    if gaps:
        mask_BT &= draw.random(mask_BT.shape) > 1 / 3
    return mask_BT


def with_outcome_rewards(batch: TokenBatch, seed: int = 0) -> TokenBatch:
    """One reward of 0 or 1 a row, at its last token in the mask."""
    draw = np.random.default_rng(seed)
    places = np.where(batch.mask_BT, np.arange(batch.mask_BT.shape[1]), -1).max(-1)
    rewards_BT = np.zeros(batch.mask_BT.shape)
    rewards_BT[np.arange(len(places)), places] = draw.integers(0, 2, len(places))
    return replace(batch, rewards_BT=np.where(batch.mask_BT, rewards_BT, 0.0))


def of_rows(batch: TokenBatch, order: np.ndarray) -> TokenBatch:
    """These rows of the batch, in this order."""
    return _mapped(batch, lambda array: array[order])


def padded(batch: TokenBatch, num_more: int) -> TokenBatch:
    """The same rows with more padding, which holds no numbers but for the rewards."""

    def grow(array: np.ndarray) -> np.ndarray:
        if array.ndim == 1:
            return array
        filler = False if array.dtype == np.bool_ else np.nan
        return np.concatenate([array, np.full((len(array), num_more), filler)], axis=1)

    grown = _mapped(batch, grow)
    return replace(grown, rewards_BT=np.nan_to_num(grown.rewards_BT))


def with_rubbish_outside(batch: TokenBatch) -> TokenBatch:
    """No numbers wherever the mask is false, but for the rewards."""

    def spoil(array: np.ndarray) -> np.ndarray:
        if array.ndim == 1 or array.dtype == np.bool_:
            return array
        return np.where(batch.mask_BT, array, np.nan)

    return replace(_mapped(batch, spoil), rewards_BT=batch.rewards_BT)


def _mapped(batch: TokenBatch, change) -> TokenBatch:  # type: ignore[no-untyped-def]
    changes = {name: change(array) for name, array in arrays_of(batch).items()}
    if batch.reward_parts is not None:
        parts = {name: change(array) for name, array in batch.reward_parts.items()}
        changes["reward_parts"] = parts
    return replace(batch, **changes)


def arrays_of(batch: TokenBatch) -> Mapping[str, np.ndarray]:
    """Its arrays by name."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def assert_close(actual: FloatMatrix, expected: FloatMatrix, tolerance: float = 1e-9) -> None:
    """Absolutely or relatively."""
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
