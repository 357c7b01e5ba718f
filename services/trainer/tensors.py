"""Micro-batches as the tensors that verl's engines take; `layout` describes the columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from services.trainer.layout import Layout
from services.trainer.parts_types import Part
from services.trainer.rows import TrainRow
from trinity.types import IntArray

PAD = 0
"""Any token does: it is never attended to."""
Matrix = npt.NDArray[np.bool_] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Optional outputs of an engine besides the log-probabilities of the tokens taken."""

    entropy_gradient: bool = False
    entropies: bool = False
    collision: bool = False
    """Sum of the squared probabilities at each token."""
    discriminator: bool = False
    """The policy's mean of its entropy discriminator at each token."""


class TensorMaker:
    """Makes the micro-batches of one batch.

    maker = TensorMaker(batch.rows, layout, packed=False)
    data = maker.tensors(part, {"loss_mask": mask_BT, "advantages": advantages_BT}, Outputs())
    """

    def __init__(self, rows: Sequence[TrainRow], layout: Layout, *, packed: bool) -> None:
        self._rows = rows
        self._layout = layout
        self._packed = packed
        self._has_experts = any(row.is_expert for row in rows)
        self._num_rows_of_empty = 2 if any(row.side for row in rows) else 1

    def tensors(self, part: Part, matrices: Mapping[str, Matrix], outputs: Outputs) -> TensorDict:
        """Builds one micro-batch with these matrices of the batch, in single precision.

        An empty micro-batch gets one dummy unit, from which nothing is learned: every rank must
        take part in each call.
        """
        tokens_NL = self._tokens(part)
        tensors = {"input_ids": torch.from_numpy(tokens_NL)}
        for name, matrix_BT in matrices.items():
            tensors[name] = self._columns(matrix_BT, part, len(tokens_NL))
        tensors |= self._of_rows(part, len(tokens_NL))
        if self._packed:
            tensors |= _packed([self._rows[n].tokens for n in part] or list(tokens_NL))
        settings = {
            "first_token": self._layout.first_token(part),
            "calculate_entropy": outputs.entropies or outputs.entropy_gradient,
            "entropy_gradient": outputs.entropy_gradient,
            "calculate_sum_pi_squared": outputs.collision,
            "calculate_discriminator": outputs.discriminator,
            "use_remove_padding": self._packed,
            "use_dynamic_bsz": False,
            "disable_auto_offload": True,  # the caller does it
            "micro_batch_size_per_gpu": len(tokens_NL),
        }
        return tensordict_utils.get_tensordict(tensors, settings)

    def _tokens(self, part: Part) -> npt.NDArray[np.int64]:
        rows = [self._rows[number] for number in part]
        longest = max((row.length for row in rows), default=2)
        tokens_NL = np.full((len(rows) or self._num_rows_of_empty, longest), PAD, dtype=np.int64)
        for index, row in enumerate(rows):
            tokens_NL[index, : row.length] = row.tokens
        return tokens_NL

    def _columns(self, matrix_BT: Matrix, part: Part, num_rows: int) -> torch.Tensor:
        dtype = np.bool_ if matrix_BT.dtype == np.bool_ else np.float32
        if not len(part):
            return torch.from_numpy(np.zeros((num_rows, 1), dtype=dtype))
        placed_NC: npt.NDArray[np.generic] = self._layout.place(matrix_BT, part)
        return torch.from_numpy(placed_NC.astype(dtype))

    def _of_rows(self, part: Part, num_rows: int) -> dict[str, torch.Tensor]:
        rows = [self._rows[number] for number in part]
        weights = [row.weight for row in rows] or [1.0] * num_rows
        temperatures = [row.temperature for row in rows] or [1.0] * num_rows
        tensors = {
            "row_weights": torch.tensor(weights, dtype=torch.float32),
            "temperature": torch.tensor(temperatures, dtype=torch.float32),
        }
        if self._has_experts:
            experts = [row.is_expert for row in rows] or [False] * num_rows
            tensors["is_expert"] = torch.tensor(experts)
        return tensors


def _packed(tokens: Sequence[IntArray | npt.NDArray[np.int64]]) -> dict[str, torch.Tensor]:
    """Returns tokens and their positions as nested tensors, one row after the other."""
    ids = [torch.from_numpy(np.asarray(row, dtype=np.int64)) for row in tokens]
    places = [torch.arange(len(row)) for row in ids]
    return {
        "input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged),
        "position_ids": torch.nested.as_nested_tensor(places, layout=torch.jagged),
    }


def response_columns(values: torch.Tensor, first: int, num_columns: int) -> torch.Tensor:
    """Returns an engine's output by token as [N, C], from padded or packed form."""
    if not values.is_nested:
        return values
    predicted_NL = values.to_padded_tensor(0.0)
    return predicted_NL[:, first - 1 : first - 1 + num_columns]
