"""Converts arrays to protobuf tensors and back; raises ValueError on invalid ones."""

import math

import numpy as np

from trinity.api.v1 import experience_pb2
from trinity.types import Alignment, Array, ArrayData

Tensor = experience_pb2.Tensor
MAX_AXES = 8

# bfloat16 has no numpy type: its bits are sent as uint16 and widened to float32 when read.
DTYPES: dict[experience_pb2.Tensor.Dtype, str] = {
    Tensor.DTYPE_BOOL: "|b1",
    Tensor.DTYPE_UINT8: "|u1",
    Tensor.DTYPE_INT16: "<i2",
    Tensor.DTYPE_INT32: "<i4",
    Tensor.DTYPE_INT64: "<i8",
    Tensor.DTYPE_FLOAT16: "<f2",
    Tensor.DTYPE_BFLOAT16: "<u2",
    Tensor.DTYPE_FLOAT32: "<f4",
    Tensor.DTYPE_FLOAT64: "<f8",
}
DTYPE_CODES = {
    np.dtype(name): code for code, name in DTYPES.items() if code != Tensor.DTYPE_BFLOAT16
}
ALIGNMENTS = {
    Alignment.TOKEN: Tensor.ALIGNMENT_TOKEN,
    Alignment.RESPONSE: Tensor.ALIGNMENT_RESPONSE,
    Alignment.SEQUENCE: Tensor.ALIGNMENT_SEQUENCE,
    Alignment.SAMPLE: Tensor.ALIGNMENT_SAMPLE,
}
ALIGNMENT_NAMES = {code: alignment for alignment, code in ALIGNMENTS.items()}


def tensor_to_proto(array: Array) -> experience_pb2.Tensor:
    """Converts an array to protobuf.

    Raises: ValueError for an element type that the protocol lacks.
    """
    tensor = experience_pb2.Tensor()
    set_tensor(tensor, array)
    return tensor


def set_tensor(tensor: experience_pb2.Tensor, array: Array) -> None:
    """Fills a tensor in place: a message that is put into another one is copied with all its bytes.

    Raises: ValueError for an element type that the protocol lacks.
    """
    data = np.ascontiguousarray(array.data)
    little = data.dtype.newbyteorder("<")
    code = DTYPE_CODES.get(little)
    if code is None:
        raise ValueError(f"arrays of type {data.dtype} cannot travel")
    tensor.dtype = code
    tensor.shape.extend(array.data.shape)
    tensor.data = data.astype(little, copy=False).tobytes()
    tensor.alignment = ALIGNMENTS[array.alignment]


def plain_data(tensor: experience_pb2.Tensor, dtype: np.dtype[np.generic]) -> bytes | None:
    """Returns the bytes of a one-dimensional tensor of this type if it is certainly valid.

    `tensor_from_proto` judges all others.
    """
    shape, data = tensor.shape, tensor.data
    is_plain = (
        len(shape) == 1
        and shape[0] * dtype.itemsize == len(data)
        and tensor.dtype == DTYPE_CODES.get(dtype)
        and tensor.alignment in ALIGNMENT_NAMES
    )
    if not is_plain or (tensor.dtype == Tensor.DTYPE_BOOL and data.translate(None, b"\0\1")):
        return None
    return data


def tensor_from_proto(tensor: experience_pb2.Tensor) -> Array:
    """Converts a tensor from protobuf.

    Raises: ValueError when type, shape, length and alignment do not fit together.
    """
    name = DTYPES.get(tensor.dtype)
    alignment = ALIGNMENT_NAMES.get(tensor.alignment)
    if name is None or alignment is None:
        raise ValueError("a tensor has no element type or no alignment")
    if len(tensor.shape) > MAX_AXES or any(length < 0 for length in tensor.shape):
        raise ValueError(f"a tensor has the impossible shape {list(tensor.shape)}")
    expected = math.prod(tensor.shape) * np.dtype(name).itemsize
    if expected != len(tensor.data):
        raise ValueError(
            f"a tensor of shape {list(tensor.shape)} needs {expected} bytes, has {len(tensor.data)}"
        )
    if (
        tensor.dtype == Tensor.DTYPE_BOOL
        and np.frombuffer(tensor.data, np.uint8).max(initial=0) > 1
    ):
        # Indexing with such a mask reads memory beside the array.
        raise ValueError("a tensor of bools has bytes other than 0 and 1")
    data: ArrayData = np.frombuffer(tensor.data, dtype=name).reshape(tuple(tensor.shape))
    if tensor.dtype == Tensor.DTYPE_BFLOAT16:
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return Array(data, alignment)
