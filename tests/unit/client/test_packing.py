"""Rows on their way to the buffer: what cannot be sent is named by its place among all."""

from collections.abc import Mapping
from itertools import accumulate

from trinity.api.v1 import buffer_pb2 as pb
from trinity.client.packing import MAX_ROW_BYTES, PACK_BYTES, RowPacker


def test_rows_that_fit_into_no_message_are_left_out_and_shift_no_place() -> None:
    huge, no_number = {"n": "x" * MAX_ROW_BYTES}, {"n": float("nan")}
    rows: list[Mapping[str, object] | str] = [{"n": 0}, huge, no_number, "[1]", {"n": 4}]
    packer = RowPacker()
    message, end = packer.messages(rows)
    assert list(message.rows.json) == ['{"n": 0}', "[1]", '{"n": 4}']
    assert end.HasField("end")
    assert end.num_before == 3
    answer = pb.SubmitTasksetResponse(refused=[pb.RefusedRow(index=1, reason="no object")])
    assert [one.index for one in packer.refused(answer)] == [1, 2, 3]
    assert packer.num_left_out == 2
    assert "3,145" in packer.refused(answer)[0].reason


def test_a_message_holds_no_more_than_its_measure() -> None:
    rows = [{"text": "x" * 1000} for _ in range(2000)]
    messages = list(RowPacker().messages(rows))
    assert all(message.ByteSize() < 1.1 * PACK_BYTES for message in messages)
    assert sum(len(message.rows.json) for message in messages) == 2000
    before = [message.num_before for message in messages]
    assert before == [0, *accumulate(len(message.rows.json) for message in messages[:-1])]
