"""The check without arrays says the same of every message as reading it does."""

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_codec import REF, an_experience
from trinity.api.v1 import experience_pb2 as pb
from trinity.data.codec import experience_from_proto, experience_to_proto
from trinity.data.codec_checks import check_experience_message
from trinity.types import Pair

Change = Callable[[pb.Experience, int], None]


def _tensor(message: pb.Experience, which: int) -> pb.Tensor:
    sequence = message.sequence
    return (sequence.tokens, sequence.action_mask, sequence.rollout_logprobs)[which % 3]


def _other_type(message: pb.Experience, number: int) -> None:
    values = pb.Tensor.Dtype.values()
    _tensor(message, number).dtype = cast("pb.Tensor.Dtype", values[number % len(values)])


def _other_data(message: pb.Experience, number: int) -> None:
    tensor = _tensor(message, number)
    tensor.data = bytes([number % 256]) * len(tensor.data)


def _shorter_data(message: pb.Experience, number: int) -> None:
    tensor = _tensor(message, number)
    tensor.data = tensor.data[: -1 - number % 4]


def _other_shape(message: pb.Experience, number: int) -> None:
    tensor = _tensor(message, number)
    tensor.shape[:] = ([], [len(tensor.data), 1], [-1], [number % 9])[number % 4]


def _other_alignment(message: pb.Experience, number: int) -> None:
    values = pb.Tensor.Alignment.values()
    _tensor(message, number).alignment = cast("pb.Tensor.Alignment", values[number % len(values)])


def _other_prompt(message: pb.Experience, number: int) -> None:
    message.sequence.prompt_length = number - 500


def _odd_logprob(message: pb.Experience, number: int) -> None:
    tensor = message.sequence.rollout_logprobs
    odd = np.array([(np.nan, np.inf)[number % 2]], "<f4").tobytes()
    place = 4 * (number % 3)
    tensor.data = tensor.data[:place] + odd + tensor.data[place + 4 :]


def _bfloat16_logprobs(message: pb.Experience, number: int) -> None:
    tensor = message.sequence.rollout_logprobs
    tensor.dtype = pb.Tensor.DTYPE_BFLOAT16
    tensor.data = bytes([number % 128]) * (len(tensor.data) // 2)


def _other_spans(message: pb.Experience, number: int) -> None:
    message.version_spans[0].end += number % 2
    message.version_spans[0].version -= number


def _other_reward(message: pb.Experience, number: int) -> None:
    message.reward = (np.nan, np.inf, -np.inf, 1.5)[number % 4]


def _odd_suffix(message: pb.Experience, number: int) -> None:
    message.eid.suffix = "\x00" * (number % 2)


def _no_reason(message: pb.Experience, _: int) -> None:
    message.finish_reason = pb.FINISH_REASON_UNSPECIFIED


def _no_body(message: pb.Experience, _: int) -> None:
    message.ClearField("sequence")


def _an_array(message: pb.Experience, number: int) -> None:
    message.arrays["mine"].CopyFrom(_tensor(message, number))
    message.arrays["mine"].shape.extend([2] * (number % 2))


def _info(message: pb.Experience, number: int) -> None:
    message.info.update({"number": number})


CHANGES: list[Change] = [
    _other_type,
    _other_data,
    _shorter_data,
    _other_shape,
    _other_alignment,
    _other_prompt,
    _odd_logprob,
    _bfloat16_logprobs,
    _other_spans,
    _other_reward,
    _odd_suffix,
    _no_reason,
    _no_body,
    _an_array,
    _info,
]


def a_message() -> pb.Experience:
    """As most are: a sequence, without further arrays."""
    message = experience_to_proto(an_experience(), REF)
    message.ClearField("arrays")
    message.ClearField("info")
    return message


def _verdict(read: Callable[[pb.Experience], object], message: pb.Experience) -> object:
    try:
        return read(message)
    except ValueError as error:
        return str(error)


def _read(message: pb.Experience) -> tuple[int, int]:
    body = experience_from_proto(message).body
    assert not isinstance(body, Pair)
    return len(body.tokens), body.response_length


def test_each_change_alone_is_judged_alike() -> None:
    for change in CHANGES:
        for number in range(24):
            message = a_message()
            change(message, number)
            assert _verdict(check_experience_message, message) == _verdict(_read, message), change


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 1000)), min_size=1, max_size=4))
def test_several_changes_together_are_judged_alike(changes: list[tuple[Change, int]]) -> None:
    message = a_message()
    for change, number in changes:
        change(message, number)
    mine, read = _verdict(check_experience_message, message), _verdict(_read, message)
    assert isinstance(mine, str) == isinstance(read, str)
    if not isinstance(mine, str):
        assert mine == read


def test_what_is_checked_most_is_checked_without_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    message = a_message()
    monkeypatch.setattr("trinity.data.codec_checks.experience_from_proto", _fail)
    monkeypatch.setattr("trinity.data.codec_checks.sequence_from_proto", _fail)
    sequence = an_experience().body
    assert not isinstance(sequence, Pair)
    assert check_experience_message(message) == (len(sequence.tokens), sequence.response_length)


def _fail(_: object) -> None:
    raise AssertionError("it was read")
