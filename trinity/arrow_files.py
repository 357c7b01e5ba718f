"""Reads Arrow's two formats: streams, as `datasets` writes them, and files (Feather, polars)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pyarrow import RecordBatch

FILE_MAGIC = b"ARROW1"


def arrow_batches(source: BinaryIO) -> Iterator["RecordBatch"]:
    """Yields the record batches of an open file in either format.

    Raises: ArrowException when it is in neither.
    """
    import pyarrow  # takes 40 MB, loaded for these files only

    is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
    source.seek(0)
    if not is_file:
        with pyarrow.ipc.open_stream(source) as stream:
            yield from stream
        return
    with pyarrow.ipc.open_file(source) as file:
        for number in range(file.num_record_batches):
            yield file.get_batch(number)
