"""Messages put together as bytes are the messages that the library would write."""

from trinity.api.v1.experience_pb2 import RunResult, RunResultBatch
from trinity.data.codec_checks import encode_repeated_field


def test_parts_of_any_length_are_read_as_if_they_had_been_put_into_the_message() -> None:
    lengths = (0, 1, 127, 128, 70_000)
    results = [RunResult(stage="x" * length, sequence=length) for length in lengths]
    whole = RunResultBatch(producer="p").SerializeToString() + encode_repeated_field(
        2, [result.SerializeToString() for result in results]
    )
    assert RunResultBatch.FromString(whole) == RunResultBatch(producer="p", results=results)
    assert whole == RunResultBatch(producer="p", results=results).SerializeToString()


def test_a_field_with_a_large_number_is_written() -> None:
    assert encode_repeated_field(16, [RunResult().SerializeToString()]) == b"\x82\x01\x00"


def test_a_part_is_written_behind_its_length_in_groups_of_seven_bits() -> None:
    heads = {0: b"\x00", 127: b"\x7f", 128: b"\x80\x01", 300: b"\xac\x02", 16384: b"\x80\x80\x01"}
    for length, head in heads.items():
        part = b"x" * length
        assert encode_repeated_field(2, [part]) == b"\x12" + head + part
