"""Arrays as tensors and back; torch is loaded when a tensor is needed."""

import sys
from typing import Any

import numpy as np


def array_of(values: Any, dtype: Any) -> Any:
    """Returns a list, a tensor or an array as one dimension of this type."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
    return np.array(values, dtype=dtype).reshape(-1)


def tensor_of(values: Any) -> Any:
    """Returns an array as a tensor over the same memory."""
    import torch  # only for those who use it

    if not values.flags.writeable:
        values = values.copy()
    return torch.from_numpy(values)
