"""Packs rows into messages for the buffer; rows that cannot be sent are left out."""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trinity.api.v1 import buffer_pb2 as pb
from trinity.client.results import RejectedRow

MAX_ROW_BYTES = 3 * 1024 * 1024
"""Fits into a message of 4 MiB."""
PACK_BYTES = 256 * 1024
PACK_ROWS = 1_000

Row = Mapping[str, object] | str
"""A row, or its JSON text as it is."""


@dataclass(slots=True)
class RowPacker:
    """Packs rows and records which ones were left out.

    for message in packer.messages(rows):
        ...
    packer.refused(response)
    """

    num_sent: int = 0
    """Rows packed so far."""
    _left_out: list[RejectedRow] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    """For each row left out, the number of rows sent before it."""

    def messages(self, rows: Iterable[Row]) -> Iterator[pb.SubmitTasksetRequest]:
        """Yields messages of some rows each, then the end."""
        pack: list[str] = []
        size = 0
        for index, row in enumerate(rows):
            text, reason = _text(row)
            if reason:
                self._left_out.append(RejectedRow(index=index, reason=reason))
                self._starts.append(self.num_sent)
                continue
            if pack and (size + len(text) > PACK_BYTES or len(pack) == PACK_ROWS):
                yield self._message(pack)
                pack, size = [], 0
            pack.append(text)
            size += len(text)
            self.num_sent += 1
        if pack:
            yield self._message(pack)
        yield pb.SubmitTasksetRequest(end=pb.TasksetEnd(), num_before=self.num_sent)

    def _message(self, pack: Sequence[str]) -> pb.SubmitTasksetRequest:
        before = self.num_sent - len(pack)
        return pb.SubmitTasksetRequest(rows=pb.TaskRows(json=pack), num_before=before)

    @property
    def num_left_out(self) -> int:
        """The number of rows that were never sent."""
        return len(self._left_out)

    def refused(self, response: pb.SubmitTasksetResponse) -> tuple[RejectedRow, ...]:
        """Returns rows left out and rows that the buffer refused, by their index among all."""
        answered = [
            RejectedRow(
                index=refusal.index + bisect_right(self._starts, refusal.index),
                reason=refusal.reason,
            )
            for refusal in response.refused
        ]
        return tuple(sorted([*self._left_out, *answered], key=lambda refusal: refusal.index))


def _text(row: Row) -> tuple[str, str]:
    """Returns the row's JSON, or the reason why it cannot be sent."""
    try:
        text = row if isinstance(row, str) else json.dumps(dict(row), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        return "", f"cannot be written as JSON: {error}"
    if size > MAX_ROW_BYTES:
        return "", f"it has {size:,} bytes, a row may have {MAX_ROW_BYTES:,}"
    return text, ""
