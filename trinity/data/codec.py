"""Converts experiences, sequences and arrays to protobuf and back; refuses invalid ones."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from google.protobuf import json_format

from trinity.api.v1 import buffer_pb2, experience_pb2
from trinity.types import (
    EID,
    LARGEST_REWARD,
    Alignment,
    Array,
    ArrayData,
    BlobRef,
    Experience,
    FinishReason,
    Pair,
    RoleSpan,
    SamplingParams,
    Sequence,
    StageKey,
    Turn,
    VersionSpan,
    experience_id,
)

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
ScalarT = TypeVar("ScalarT", bound=np.generic)
FINISH_REASONS = {
    FinishReason.STOP: experience_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: experience_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: experience_pb2.FINISH_REASON_ABORT,
    FinishReason.PROMPT_TRUNCATED: experience_pb2.FINISH_REASON_PROMPT_TRUNCATED,
}
FINISH_REASON_NAMES = {code: reason for reason, code in FINISH_REASONS.items()}


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


def raw_bytes_if_valid(tensor: experience_pb2.Tensor, dtype: np.dtype[np.generic]) -> bytes | None:
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
        # Indexing with such a mask reads memory outside of the array.
        raise ValueError("a tensor of bools has bytes other than 0 and 1")
    data: ArrayData = np.frombuffer(tensor.data, dtype=name).reshape(tuple(tensor.shape))
    if tensor.dtype == Tensor.DTYPE_BFLOAT16:
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return Array(data, alignment)


def check_sequence(sequence: Sequence) -> None:
    """Checks one sequence.

    Raises: ValueError when lengths do not fit together or a log-probability is not a number.
    """
    length = len(sequence.tokens)
    if not 1 <= sequence.prompt_length <= length:
        raise ValueError(f"prompt_length {sequence.prompt_length} is outside 1..{length}")
    logprobs = sequence.rollout_logprobs
    for name, array in (("action_mask", sequence.action_mask), ("rollout_logprobs", logprobs)):
        if array.shape != (sequence.response_length,):
            raise ValueError(
                f"{name} has shape {array.shape}, the response {sequence.response_length} tokens"
            )
    if not np.isfinite(logprobs).all() and not np.isfinite(logprobs[sequence.action_mask]).all():
        raise ValueError("rollout_logprobs holds values that are not finite")


def check_experience(experience: Experience) -> None:
    """Applies the buffer's validation to a sample; producers may call it first.

    Raises: ValueError when the sample contradicts itself.
    """
    if isinstance(experience.body, Pair):
        check_sequence(experience.body.chosen)
        check_sequence(experience.body.rejected)
    else:
        check_sequence(experience.body)
    check_metadata(experience)


def check_metadata(experience: Experience) -> None:
    """Checks everything but the tokens; a pair's version spans are not checked.

    A pair is not rolled out in one piece.

    Raises: ValueError when the sample contradicts itself.
    """
    if experience.reward is not None:
        check_reward(experience.reward)
    if "\x00" in experience.eid.suffix:
        raise ValueError("the suffix of the EID holds a null character")
    if isinstance(experience.body, Sequence) and experience.version_spans:
        check_spans(experience.version_spans, experience.body.response_length)


def check_reward(reward: float) -> None:
    """Raises: ValueError for a reward that training cannot represent."""
    if not abs(reward) <= LARGEST_REWARD:
        raise ValueError(
            f"the reward {reward} is not a finite number, of {LARGEST_REWARD:g} at most"
        )


def check_spans(
    spans: Iterable[VersionSpan | experience_pb2.VersionSpan], response_length: int
) -> None:
    """Checks that version spans cover the response without gaps.

    Raises: ValueError.
    """
    end = 0
    for span in spans:
        if span.start != end or span.end < span.start or span.version < 0:
            raise ValueError("version_spans have a gap or overlap")
        end = span.end
    if end != response_length:
        raise ValueError(f"version_spans end at {end}, the response has {response_length} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRef:
    """Identifies the assignment of a sample; with the EID it determines the sample's id."""

    tenant: str
    experiment_id: str
    assignment_id: str
    taskset: str
    task_index: int


def _set_sequence(message: experience_pb2.Sequence, sequence: Sequence) -> None:
    check_sequence(sequence)
    tokens = sequence.tokens.astype(np.int32, copy=False)
    mask = sequence.action_mask.astype(np.bool_, copy=False)
    logprobs = sequence.rollout_logprobs.astype(np.float32, copy=False)
    set_tensor(message.tokens, Array(tokens, Alignment.TOKEN))
    message.prompt_length = sequence.prompt_length
    set_tensor(message.action_mask, Array(mask, Alignment.RESPONSE))
    set_tensor(message.rollout_logprobs, Array(logprobs, Alignment.RESPONSE))
    message.prompt_text = sequence.prompt_text
    message.response_text = sequence.response_text
    for span in _fitting(sequence.role_spans, len(tokens)):
        message.role_spans.add(role=span.role, start=span.start, end=span.end)


def _fitting(
    spans: Iterable[RoleSpan | experience_pb2.RoleSpan], num_tokens: int
) -> Iterator[RoleSpan]:
    """Yields the spans in order that lie within the tokens: a workflow may have cut these."""
    end = 0
    for span in spans:
        if end <= span.start < span.end <= num_tokens:
            yield RoleSpan(role=span.role, start=span.start, end=span.end)
            end = span.end


def sequence_from_proto(message: experience_pb2.Sequence) -> Sequence:
    """Converts a sequence from protobuf.

    Raises: ValueError when the arrays' lengths do not fit together.
    """
    sequence = Sequence(
        tokens=_typed(message.tokens, "tokens", np.dtype(np.int32)),
        prompt_length=message.prompt_length,
        action_mask=_typed(message.action_mask, "action_mask", np.dtype(np.bool_)),
        rollout_logprobs=_typed(message.rollout_logprobs, "rollout_logprobs", np.dtype(np.float32)),
        prompt_text=message.prompt_text,
        response_text=message.response_text,
    )
    sequence.role_spans = tuple(_fitting(message.role_spans, len(sequence.tokens)))
    check_sequence(sequence)
    return sequence


def _typed(
    tensor: experience_pb2.Tensor, name: str, dtype: np.dtype[ScalarT]
) -> np.ndarray[tuple[int, ...], np.dtype[ScalarT]]:
    if (plain := raw_bytes_if_valid(tensor, dtype)) is not None:
        return np.frombuffer(plain, dtype)
    data = tensor_from_proto(tensor).data
    if data.dtype != dtype or data.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional {dtype}, is {data.ndim}-d {data.dtype}")
    return data.astype(dtype, copy=False)


def experience_to_proto(experience: Experience, ref: SampleRef) -> experience_pb2.Experience:
    """Converts a sample to protobuf.

    Raises: ValueError when the sample contradicts itself or has no EID.
    """
    message = experience_pb2.Experience()
    set_experience(message, experience, ref)
    return message


def set_experience(
    message: experience_pb2.Experience, experience: Experience, ref: SampleRef
) -> None:
    """Fills an empty message in place, which saves a copy when it is part of another message.

    Raises: ValueError when the sample contradicts itself or has no EID.
    """
    eid = experience.eid
    if not eid.stage:
        raise ValueError("the experience has no EID")
    set_content(message, experience)
    message.id = experience_id(ref.assignment_id, eid.run, eid.attempt, eid.step, eid.suffix)
    message.eid.CopyFrom(eid_to_proto(eid))
    message.tenant = ref.tenant
    message.experiment_id = ref.experiment_id
    message.assignment_id = ref.assignment_id
    message.taskset = ref.taskset
    message.task_index = ref.task_index


def set_content(message: experience_pb2.Experience, experience: Experience) -> None:
    """Fills everything but the place of a sample.

    Raises: ValueError when the sample contradicts itself.
    """
    if experience.reward is not None:
        message.reward = experience.reward
    message.reward_parts.update(experience.reward_parts)
    message.finish_reason = FINISH_REASONS[experience.finish_reason]
    message.version_spans.extend(map(span_to_proto, experience.version_spans))
    message.turns.extend(map(_turn_to_proto, experience.turns))
    message.chat_template_sha256 = experience.chat_template_sha256
    message.tools_sha256 = experience.tools_sha256
    for name, array in experience.arrays.items():
        set_tensor(message.arrays[name], array)
    message.info.update(experience.info)
    message.metrics.update(experience.metrics)
    message.blobs.extend(map(_blob_to_proto, experience.blobs))
    message.reward_state = _reward_state(experience)
    message.reward_revision = experience.reward_revision
    message.trace_id = experience.trace_id
    if experience.sampling is not None:
        message.sampling.CopyFrom(sampling_to_proto(experience.sampling))
    _set_body(message, experience.body)


def experience_from_proto(message: experience_pb2.Experience) -> Experience:
    """Converts a sample from protobuf and checks it as `check_experience` does.

    Raises: ValueError when the message contradicts itself.
    """
    experience = Experience(
        body=_body_from_proto(message),
        eid=eid_from_proto(message.eid),
        reward=message.reward if message.HasField("reward") else None,
        reward_parts=dict(message.reward_parts),
        finish_reason=finish_reason_of(message),
        version_spans=tuple(span_from_proto(span) for span in message.version_spans),
        turns=tuple(_turn_from_proto(turn) for turn in message.turns),
        sampling=sampling_from_proto(message.sampling) if message.HasField("sampling") else None,
        chat_template_sha256=message.chat_template_sha256,
        tools_sha256=message.tools_sha256,
        arrays={name: tensor_from_proto(tensor) for name, tensor in message.arrays.items()},
        info=json_format.MessageToDict(message.info),
        metrics=dict(message.metrics),
        blobs=tuple(blob_from_proto(blob) for blob in message.blobs),
        reward_revision=message.reward_revision,
        trace_id=message.trace_id,
    )
    check_metadata(experience)
    return experience


def finish_reason_of(message: experience_pb2.Experience) -> FinishReason:
    """Returns the finish reason of a message.

    Raises: ValueError when it is missing.
    """
    reason = FINISH_REASON_NAMES.get(message.finish_reason)
    if reason is None:
        raise ValueError("the experience has no finish reason")
    return reason


def _reward_state(experience: Experience) -> experience_pb2.RewardState:
    if experience.reward is None:
        return experience_pb2.REWARD_STATE_AWAITING_FEEDBACK
    return experience_pb2.REWARD_STATE_FINAL


def _set_body(message: experience_pb2.Experience, body: Sequence | Pair) -> None:
    if isinstance(body, Sequence):
        _set_sequence(message.sequence, body)
        return
    _set_sequence(message.pair.chosen, body.chosen)
    _set_sequence(message.pair.rejected, body.rejected)


def _body_from_proto(message: experience_pb2.Experience) -> Sequence | Pair:
    match message.WhichOneof("body"):
        case "sequence":
            return sequence_from_proto(message.sequence)
        case "pair":
            return Pair(
                chosen=sequence_from_proto(message.pair.chosen),
                rejected=sequence_from_proto(message.pair.rejected),
            )
        case _:
            raise ValueError("the experience has neither a sequence nor a pair")


def eid_to_proto(eid: EID) -> experience_pb2.Eid:
    """Converts an EID to protobuf."""
    return experience_pb2.Eid(
        stage=eid.stage,
        explore_step=int(eid.batch),
        position=int(eid.task),
        run=eid.run,
        attempt=eid.attempt,
        step=eid.step,
        suffix=eid.suffix,
    )


def eid_from_proto(message: experience_pb2.Eid) -> EID:
    """Converts an EID from protobuf."""
    return EID(
        stage=message.stage,
        batch=message.explore_step,
        task=message.position,
        run=message.run,
        attempt=message.attempt,
        step=message.step,
        suffix=message.suffix,
    )


def span_to_proto(span: VersionSpan) -> experience_pb2.VersionSpan:
    """Converts a version span to protobuf."""
    return experience_pb2.VersionSpan(
        start=span.start, end=span.end, version=span.version, incarnation=span.incarnation
    )


def span_from_proto(message: experience_pb2.VersionSpan) -> VersionSpan:
    """Converts a version span from protobuf."""
    return VersionSpan(
        start=message.start,
        end=message.end,
        version=message.version,
        incarnation=message.incarnation,
    )


def _turn_to_proto(turn: Turn) -> experience_pb2.Turn:
    return experience_pb2.Turn(
        prompt_length=turn.prompt_length, end=turn.end, content_sha256=turn.content_sha256
    )


def _turn_from_proto(message: experience_pb2.Turn) -> Turn:
    return Turn(
        prompt_length=message.prompt_length, end=message.end, content_sha256=message.content_sha256
    )


def sampling_to_proto(sampling: SamplingParams) -> experience_pb2.SamplingParams:
    """Converts sampling parameters to protobuf."""
    return experience_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        seed=sampling.seed,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        stop=sampling.stop,
        logprobs=sampling.logprobs,
        json_schema=sampling.json_schema,
    )


def sampling_from_proto(message: experience_pb2.SamplingParams) -> SamplingParams:
    """Converts sampling parameters from protobuf; older samples have no penalties."""
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        max_tokens=message.max_tokens,
        seed=message.seed,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty or 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        stop=tuple(message.stop),
        logprobs=message.logprobs,
        json_schema=message.json_schema,
    )


def _blob_to_proto(blob: BlobRef) -> experience_pb2.Blob:
    return experience_pb2.Blob(
        name=blob.name, sha256=blob.sha256, size=blob.size, media_type=blob.media_type
    )


def blob_from_proto(message: experience_pb2.Blob) -> BlobRef:
    """Converts a reference to a blob."""
    return BlobRef(
        name=message.name, sha256=message.sha256, size=message.size, media_type=message.media_type
    )


def stage_key_to_proto(key: StageKey) -> buffer_pb2.StageKey:
    """Converts a stage key to protobuf."""
    return buffer_pb2.StageKey(tenant=key.tenant, experiment_id=key.experiment_id, stage=key.stage)
