"""Rows as the tensors that verl's engines take.

Tokens are padded on the right; T columns begin at the earliest response token of any row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from services.trainer.rows import TrainRow
from trinity.types import IntArray

PAD = 0
"""Any token does: nothing looks at it."""


def to_tensors(rows: Sequence[TrainRow], *, packed: bool, calculate_entropy: bool) -> TensorDict:
    """One micro-batch; with `packed`, tokens without padding, for engines with flash attention.

    Without rows it is one row that nothing is learned from: every rank must take part in each call.
    """
    longest = max((row.length for row in rows), default=2)
    first = min((row.prompt_length for row in rows), default=1)
    num_rows = max(len(rows), 1)
    tokens_BL = np.full((num_rows, longest), PAD, dtype=np.int64)
    mask_BT = np.zeros((num_rows, longest - first), dtype=np.bool_)
    old_BT = np.zeros(mask_BT.shape, dtype=np.float32)
    advantages_BT = np.zeros(mask_BT.shape, dtype=np.float32)
    weights_B = np.ones(num_rows, dtype=np.float32)
    temperature_B = np.ones(num_rows, dtype=np.float32)
    for index, row in enumerate(rows):
        response = slice(row.prompt_length - first, row.length - first)
        tokens_BL[index, : row.length] = row.tokens
        mask_BT[index, response] = row.mask
        old_BT[index, response] = np.where(row.mask, row.old_logprobs, 0)
        advantages_BT[index, response] = np.where(row.mask, row.advantages, 0)
        weights_B[index] = row.weight
        temperature_B[index] = row.temperature
    tensors = {
        "input_ids": torch.from_numpy(tokens_BL),
        "loss_mask": torch.from_numpy(mask_BT),
        "old_logprobs": torch.from_numpy(old_BT),
        "advantages": torch.from_numpy(advantages_BT),
        "row_weights": torch.from_numpy(weights_B),
        "temperature": torch.from_numpy(temperature_B),
    }
    if packed:
        tensors |= _packed([row.tokens for row in rows] or [tokens_BL[0]])
    settings = {
        "first_token": first,
        "calculate_entropy": calculate_entropy,
        "use_remove_padding": packed,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": num_rows,
    }
    return tensordict_utils.get_tensordict(tensors, settings)


def _packed(tokens: Sequence[IntArray | npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
    """Tokens and their places, row after row."""
    ids = [torch.from_numpy(np.asarray(row, dtype=np.int64)) for row in tokens]
    places = [torch.arange(len(row)) for row in ids]
    return {
        "input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged),
        "position_ids": torch.nested.as_nested_tensor(places, layout=torch.jagged),
    }


def response_columns(values: torch.Tensor, first: int, num_columns: int) -> torch.Tensor:
    """An engine's output by token as [B, T], whether it came padded or packed."""
    if not values.is_nested:
        return values
    predicted_BL = values.to_padded_tensor(0.0)
    return predicted_BL[:, first - 1 : first - 1 + num_columns]
