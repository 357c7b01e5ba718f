"""Experiences cross the wire unchanged, and what cannot be is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.subtests import as_subtests
from trinity.api.v1 import experience_pb2
from trinity.data.codec import (
    SampleRef,
    Tensor,
    check_experience,
    experience_from_proto,
    experience_to_proto,
    sampling_from_proto,
    sequence_from_proto,
    tensor_from_proto,
    tensor_to_proto,
)
from trinity.types import (
    EID,
    Alignment,
    Array,
    Experience,
    FinishReason,
    Pair,
    RoleSpan,
    SamplingParams,
    Sequence,
    Turn,
    VersionSpan,
)

REF = SampleRef(
    tenant="t",
    experiment_id="5b8f6a5e-0d0b-4f0c-9a4b-9f6f1a1c2d3e",
    assignment_id="0f6f2a0c-7b1f-4d55-8f2e-6a1c2d3e4f50",
    taskset="sums",
    task_index=7,
)


def a_sequence() -> Sequence:
    return Sequence(
        tokens=np.array([5, 6, 7, 8], np.int32),
        prompt_length=2,
        action_mask=np.array([True, False]),
        rollout_logprobs=np.array([-0.25, 0.0], np.float32),
        prompt_text="1+1=",
        response_text="2",
        role_spans=(RoleSpan(role="user", start=0, end=1), RoleSpan(role="tool", start=3, end=4)),
    )


def an_experience() -> Experience:
    return Experience(
        body=a_sequence(),
        eid=EID(stage="rft", batch=3, task=1, run=2, attempt=4, step=0, suffix=""),
        reward=1.0,
        reward_parts={"accuracy": 1.0},
        finish_reason=FinishReason.STOP,
        version_spans=(VersionSpan(start=0, end=2, version=9, incarnation=1),),
        turns=(Turn(prompt_length=2, end=4, content_sha256=b"\x07" * 32),),
        sampling=SamplingParams(
            temperature=0.7,
            seed=2**62 + 1,
            min_p=0.1,
            repetition_penalty=1.1,
            stop=("a", "b"),
            json_schema="{}",
        ),
        arrays={"teacher": Array(np.arange(6, dtype=np.float64).reshape(2, 3), Alignment.RESPONSE)},
        info={"note": "kept", "depth": {"n": 1.0}},
        metrics={"turns": 2.0},
    )


def test_an_experience_crosses_the_wire_unchanged() -> None:
    sent = an_experience()
    message = experience_to_proto(sent, REF)
    received = experience_from_proto(
        experience_pb2.Experience.FromString(message.SerializeToString())
    )
    assert experience_to_proto(received, REF) == message
    assert received.eid == sent.eid
    assert received.sampling == sent.sampling
    assert received.info == sent.info
    np.testing.assert_array_equal(received.sequence.tokens, sent.sequence.tokens)
    np.testing.assert_array_equal(received.arrays["teacher"].data, sent.arrays["teacher"].data)


def test_the_round_trip_covers_every_field_of_a_sequence() -> None:
    message = experience_to_proto(an_experience(), REF).sequence
    in_contract = {field.name for field in message.DESCRIPTOR.fields}
    assert in_contract == {field.name for field, _ in message.ListFields()}
    assert sequence_from_proto(message).role_spans == a_sequence().role_spans


def test_roles_of_tokens_that_a_workflow_has_cut_off_are_left_out() -> None:
    sent = an_experience()
    spans = sent.sequence.role_spans
    beyond = RoleSpan(role="tool", start=3, end=5)
    backwards = RoleSpan(role="user", start=0, end=1)
    sent.body = replace(sent.sequence, role_spans=(spans[0], beyond, backwards))
    received = experience_from_proto(experience_to_proto(sent, REF))
    assert received.sequence.role_spans == spans[:1]


def test_the_round_trip_covers_every_field_of_the_contract() -> None:
    """A field that the codec forgets in both directions would go unnoticed otherwise."""
    message = experience_to_proto(an_experience(), REF)
    in_contract = {field.name for field in experience_pb2.Experience.DESCRIPTOR.fields}
    covered = {field.name for field, _ in message.ListFields()}
    set_elsewhere = {"pair", "blobs", "trace_id", "chat_template_sha256", "tools_sha256"}
    assert in_contract - covered == set_elsewhere | {"reward_revision"}


def test_the_same_sample_always_gets_the_same_id() -> None:
    first, again = (experience_to_proto(an_experience(), REF).id for _ in range(2))
    other = an_experience()
    other.eid = EID(stage="rft", batch=3, task=1, run=3, attempt=4, suffix="")
    assert first == again != experience_to_proto(other, REF).id


def test_a_pair_crosses_whole() -> None:
    sent = an_experience()
    sent.body = Pair(chosen=a_sequence(), rejected=a_sequence())
    received = experience_from_proto(experience_to_proto(sent, REF))
    assert isinstance(received.body, Pair)


def test_an_awaited_reward_stays_absent() -> None:
    sent = an_experience()
    sent.reward = None
    message = experience_to_proto(sent, REF)
    assert message.reward_state == experience_pb2.REWARD_STATE_AWAITING_FEEDBACK
    assert experience_from_proto(message).reward is None


@as_subtests("dtype", ["?", "u1", "i2", "i4", "i8", "f2", "f4", "f8", ">f4"])
def test_arrays_of_every_type_and_byte_order_keep_their_values(dtype: str) -> None:
    data = np.array([[0, 1], [1, 0]], dtype)
    received = tensor_from_proto(tensor_to_proto(Array(data))).data
    np.testing.assert_array_equal(received, data)


def test_bfloat16_is_read_as_float32() -> None:
    tensor = experience_pb2.Tensor(
        dtype=experience_pb2.Tensor.DTYPE_BFLOAT16,
        alignment=experience_pb2.Tensor.ALIGNMENT_SAMPLE,
        shape=[1],
        data=b"\x80\x3f",
    )
    assert tensor_from_proto(tensor).data.tolist() == [1.0]


def test_a_tensor_of_the_wrong_length_is_refused() -> None:
    tensor = tensor_to_proto(Array(np.zeros(3, np.float32)))
    tensor.shape[0] = 4
    with pytest.raises(ValueError, match="needs 16 bytes, has 12"):
        tensor_from_proto(tensor)


@pytest.mark.parametrize("shape", [[-1], [2**62, 2**62], [1] * 9])
def test_an_impossible_shape_is_refused(shape: list[int]) -> None:
    tensor = tensor_to_proto(Array(np.zeros(1, np.float32)))
    tensor.shape[:] = shape
    with pytest.raises(ValueError):
        tensor_from_proto(tensor)


def test_bools_other_than_0_and_1_are_refused() -> None:
    tensor = tensor_to_proto(Array(np.zeros(3, np.bool_)))
    tensor.data = b"\x00\x02\x01"
    with pytest.raises(ValueError, match="bytes other than 0 and 1"):
        tensor_from_proto(tensor)
    message = experience_to_proto(an_experience(), REF).sequence
    message.action_mask.data = b"\x02\x01"
    with pytest.raises(ValueError, match="bytes other than 0 and 1"):
        sequence_from_proto(message)


def with_tokens(
    *, shape: list[int], dtype: Tensor.Dtype = Tensor.DTYPE_INT32
) -> experience_pb2.Sequence:
    """A sequence whose four tokens, of 4 bytes each, are declared otherwise."""
    message = experience_to_proto(an_experience(), REF).sequence
    message.tokens.shape[:] = shape
    message.tokens.dtype = dtype
    return message


@as_subtests(
    ("message", "said"),
    [
        (with_tokens(shape=[5]), "needs 20 bytes, has 16"),
        (with_tokens(shape=[3]), "needs 12 bytes, has 16"),
        (with_tokens(shape=[64]), "needs 256 bytes, has 16"),
        (with_tokens(shape=[4, 1]), "tokens must be one-dimensional int32, is 2-d int32"),
        (with_tokens(shape=[2, 2]), "tokens must be one-dimensional int32, is 2-d int32"),
        (with_tokens(shape=[]), "needs 4 bytes, has 16"),
        (
            with_tokens(shape=[4], dtype=Tensor.DTYPE_FLOAT32),
            "tokens must be one-dimensional int32, is 1-d float32",
        ),
        (with_tokens(shape=[16], dtype=Tensor.DTYPE_UINT8), "is 1-d uint8"),
    ],
)
def test_tokens_that_are_not_what_they_are_declared_to_be_are_refused(
    message: experience_pb2.Sequence, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        sequence_from_proto(message)


@pytest.mark.parametrize(
    ("logprobs", "mask", "is_taken"),
    [
        ([-0.25, np.nan], [True, False], True),
        ([-0.25, np.nan], [True, True], False),
        ([-np.inf, np.inf], [False, True], False),
        ([np.nan, np.nan], [False, False], True),
    ],
)
def test_only_tokens_that_are_trained_need_a_finite_log_probability(
    logprobs: list[float], mask: list[bool], is_taken: bool
) -> None:
    sample = an_experience()
    given = np.array(logprobs, np.float32)
    sample.body = replace(sample.sequence, rollout_logprobs=given, action_mask=np.array(mask))
    if is_taken:
        received = experience_from_proto(experience_to_proto(sample, REF)).sequence
        np.testing.assert_array_equal(received.rollout_logprobs, given)
        return
    with pytest.raises(ValueError, match="rollout_logprobs holds values that are not finite"):
        check_experience(sample)


def test_sampling_that_names_no_penalty_has_none() -> None:
    sampling = sampling_from_proto(experience_pb2.SamplingParams(temperature=0.5))
    assert sampling.repetition_penalty == 1.0
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.0, 0.0)


def test_an_experience_whose_mask_does_not_fit_is_refused() -> None:
    broken = an_experience()
    broken.sequence.action_mask = np.array([True])
    with pytest.raises(ValueError, match="action_mask"):
        experience_to_proto(broken, REF)


@pytest.mark.parametrize("reward", [1e30, -1e30])
def test_the_largest_reward_is_taken(reward: float) -> None:
    sample = an_experience()
    sample.reward = reward
    check_experience(sample)
    sample.reward = 1.01 * reward
    with pytest.raises(ValueError, match="not a finite number, of 1e\\+30 at most"):
        check_experience(sample)


@pytest.mark.parametrize(
    ("prompt_length", "is_taken"), [(0, False), (1, True), (4, True), (5, False)]
)
def test_a_prompt_has_one_token_and_no_more_than_there_are(
    prompt_length: int, is_taken: bool
) -> None:
    rest = max(4 - prompt_length, 0)
    message = experience_to_proto(an_experience(), REF).sequence
    message.prompt_length = prompt_length
    message.action_mask.CopyFrom(
        tensor_to_proto(Array(np.zeros(rest, np.bool_), Alignment.RESPONSE))
    )
    message.rollout_logprobs.CopyFrom(
        tensor_to_proto(Array(np.zeros(rest, np.float32), Alignment.RESPONSE))
    )
    if is_taken:
        assert sequence_from_proto(message).response_length == rest
        return
    with pytest.raises(ValueError, match=f"prompt_length {prompt_length} is outside 1..4"):
        sequence_from_proto(message)


@pytest.mark.parametrize("shape", [[], [0], [0, 3], [1] * 8])
def test_arrays_of_any_shape_that_can_be_travel(shape: list[int]) -> None:
    data = np.ones(shape, np.bool_)
    received = tensor_from_proto(tensor_to_proto(Array(data)))
    assert received.data.shape == tuple(shape) and received.data.all()


def test_a_reward_that_is_no_number_is_refused() -> None:
    message = experience_to_proto(an_experience(), REF)
    message.reward = float("nan")
    with pytest.raises(ValueError, match="finite"):
        experience_from_proto(message)


def with_spans(*bounds: tuple[int, int], version: int = 9) -> Experience:
    one = an_experience()
    one.version_spans = tuple(
        VersionSpan(start=start, end=end, version=version, incarnation=1) for start, end in bounds
    )
    return one


def test_who_makes_a_sample_may_ask_whether_the_buffer_would_take_it() -> None:
    check_experience(an_experience())
    check_experience(with_spans((0, 1), (1, 2)))
    check_experience(with_spans((0, 1), (1, 1), (1, 2), version=0))
    check_experience(with_spans())
    pair = an_experience()
    pair.body = Pair(chosen=a_sequence(), rejected=a_sequence())
    check_experience(pair)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (with_spans((0, 1)), "version_spans end at 1, the response has 2 tokens"),
        (with_spans((1, 2)), "gap or overlap"),
        (with_spans((0, 1), (0, 2)), "gap or overlap"),
        (with_spans((0, 2), version=-1), "gap or overlap"),
        (with_spans((0, 2), (2, 1)), "gap or overlap"),
        (with_spans((0, 3)), "version_spans end at 3, the response has 2 tokens"),
    ],
)
def test_spans_that_do_not_cover_the_response_are_refused_on_both_sides(
    broken: Experience, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        check_experience(broken)
    with pytest.raises(ValueError, match=reason):
        experience_from_proto(experience_to_proto(broken, REF))


def test_a_sample_that_contradicts_itself_is_refused_before_it_is_sent() -> None:
    endless = an_experience()
    endless.reward = float("inf")
    with pytest.raises(ValueError, match="finite"):
        check_experience(endless)
    unnamed = an_experience()
    unnamed.eid = EID(stage="rft", batch=1, task=0, run=0, suffix="a\x00")
    with pytest.raises(ValueError, match="null character"):
        check_experience(unnamed)
    short = an_experience()
    short.sequence.action_mask = np.array([True])
    with pytest.raises(ValueError, match="action_mask"):
        check_experience(short)
