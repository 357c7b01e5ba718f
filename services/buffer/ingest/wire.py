"""Decodes messages with results, and checks them before they are parsed."""

import hashlib
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from services.buffer.domain.results import ReceivedSample, Result
from services.buffer.domain.tasks import SampleText, sanitize_text
from services.buffer.domain.turns import ReceivedTurn
from trinity.api.v1 import experience_pb2 as pb
from trinity.data.codec import finish_reason_of
from trinity.data.codec_checks import check_experience_message, checked_turn_digests
from trinity.errors import InvalidRequest
from trinity.runtime.rpc.bounds import check_bounds
from trinity.runtime.session_ids import session_id, turn_id
from trinity.runtime.subjects import runs_subject
from trinity.runtime.uuids import CANONICAL_UUID
from trinity.types import StageKey, experience_id

FIXED_BYTES = {1: 8, 5: 4}
"""Length of a fixed-size value by wire type, which is in the lowest bits of a field's tag."""
VARINT, LENGTH = 0, 2
NOT_PACKED = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE}
MAX_SEQUENCE = 2**63 - 1
MAX_REFERENCE_BYTES = 1024
MAX_RESULTS = 1_000
"""Most results in one message; an explorer packs far fewer."""
MAX_SUFFIX_BYTES = 500
"""A suffix is part of an index."""
MAX_REASON_LENGTH = 4_000
SHA256_BYTES = 32
BATCH = pb.DESCRIPTOR.message_types_by_name["RunResultBatch"]
COUNTED_BYTES = 1024 * 1024
"""Larger bodies are uploads of up to 64 MiB, whose fields are counted before parsing."""
MAX_FIELDS = 200_000


def count_fields(body: bytes, kind: Descriptor, most: int) -> int:
    """Counts fields and packed numbers, nested messages included; stops soon after `most`.

    In malformed input it counts only a part, or returns 0: parsing will report the error.
    """
    try:
        return _count(body, kind, most)
    except IndexError:
        return 0


def _count(body: bytes, kind: Descriptor, most: int) -> int:
    count, open_parts = 0, [(0, len(body), kind)]
    while open_parts and count <= most:
        place, end, own = open_parts.pop()
        while place < end and count <= most:
            tag, place = _number(body, place)
            count += 1
            wire_type = tag & 7
            if wire_type == VARINT:
                _, place = _number(body, place)
            elif wire_type in FIXED_BYTES:
                place += FIXED_BYTES[wire_type]
            elif wire_type == LENGTH:
                length, place = _number(body, place)
                inner_end = min(place + length, end)
                field = own.fields_by_number.get(tag >> 3)
                if field is not None and field.message_type is not None:
                    open_parts.append((place, inner_end, field.message_type))
                elif field is not None and field.is_repeated and field.type not in NOT_PACKED:
                    count += inner_end - place
                place = inner_end
            else:
                return count
    return count


def _number(body: bytes, place: int) -> tuple[int, int]:
    """Decodes a varint; returns it and the offset of its end."""
    value = shift = 0
    while True:
        byte = body[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise IndexError


def subject_of(key: StageKey) -> str:
    """Returns the subject on which results of a stage are published."""
    return runs_subject(key.tenant, key.experiment_id, key.stage)


class Unparsable(Exception):
    """Raised for a message that is not a valid batch of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidResult:
    """A result or a turn that contradicts itself."""

    producer: str
    sequence: int
    reason: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """A decoded message."""

    results: tuple[Result, ...]
    turns: tuple[ReceivedTurn, ...]
    invalid: tuple[InvalidResult, ...]
    blob_sha256: bytes
    """Hash of the blob with the results, if they were too large for the message."""


def check_field_count(body: bytes) -> None:
    """Checks the number of fields.

    Raises: Unparsable when parsing would take too much memory.
    """
    if len(body) > COUNTED_BYTES and count_fields(body, BATCH, MAX_FIELDS) > MAX_FIELDS:
        raise Unparsable(
            f"it has more than {MAX_FIELDS:,} parts (fields, and items of lists in `info`)"
        )


def decode_batch(subject: str, body: bytes) -> DecodedBatch:
    """Decodes a message; an invalid result does not affect the others.

    Raises: Unparsable when no result can be attributed to a producer.
    """
    check_field_count(body)
    try:
        message = pb.RunResultBatch.FromString(body)
    except DecodeError as error:
        raise Unparsable("it is not a RunResultBatch") from error
    try:
        producer = str(uuid.UUID(message.producer))
    except ValueError as error:
        raise Unparsable("its producer is not a UUID") from error
    _check_form(message)
    results: list[Result] = []
    turns: list[ReceivedTurn] = []
    refused: list[InvalidResult] = []
    parts: list[pb.RunResult | pb.SessionTurn] = [*message.results, *message.turns]
    for part in parts:
        try:
            _check_bounds(part)
            if isinstance(part, pb.RunResult):
                results.append(_read_result(subject, producer, part))
            else:
                turns.append(_read_turn(subject, producer, part))
        except ValueError as error:
            refused.append(_invalid(producer, part, error))
    return DecodedBatch(
        results=tuple(results),
        turns=tuple(turns),
        invalid=tuple(refused),
        blob_sha256=message.blob_sha256,
    )


def _check_bounds(part: pb.RunResult | pb.SessionTurn) -> None:
    """Checks a result or turn by the same table as the requests over gRPC."""
    try:
        check_bounds(part)
    except InvalidRequest as error:
        raise ValueError(str(error)) from error


def _invalid(
    producer: str, part: pb.RunResult | pb.SessionTurn, error: ValueError
) -> InvalidResult:
    return InvalidResult(
        producer=producer,
        sequence=part.sequence,
        reason=sanitize_text(str(error))[:MAX_REASON_LENGTH],
        body=part.SerializeToString(),
    )


def _check_form(message: pb.RunResultBatch) -> None:
    """Checks that there are either results and turns or a reference to them."""
    count = len(message.results) + len(message.turns)
    if bool(count) == bool(message.blob_sha256):
        raise Unparsable("it must hold results or a reference to some, and not both")
    if count > MAX_RESULTS:
        raise Unparsable(f"it holds {count} results, more than {MAX_RESULTS}")
    if message.blob_sha256 and len(message.blob_sha256) != SHA256_BYTES:
        raise Unparsable(f"its reference has {len(message.blob_sha256)} bytes, no SHA-256 has")


def is_reference(body: bytes) -> bool:
    """Returns whether a message only refers to its results; such a message is short."""
    if len(body) > MAX_REFERENCE_BYTES:
        return False
    try:
        return bool(pb.RunResultBatch.FromString(body).blob_sha256)
    except DecodeError:
        return False


def _key_of(subject: str, message: pb.RunResult | pb.SessionTurn) -> StageKey:
    key = StageKey(
        tenant=message.tenant,
        experiment_id=_uuid(message.experiment_id, "experiment_id"),
        stage=message.stage,
    )
    if subject_of(key) != subject:
        raise ValueError(f"it came on {subject} but belongs to {subject_of(key)}")
    if not 1 <= message.sequence <= MAX_SEQUENCE:
        raise ValueError("its sequence is not 1 or more")
    return key


def _read_turn(subject: str, producer: str, message: pb.SessionTurn) -> ReceivedTurn:
    key = _key_of(subject, message)
    if message.session_id:
        assignment_id, session = None, _uuid(message.session_id, "session_id")
    else:
        assignment_id = _uuid(message.assignment_id, "assignment_id")
        session = session_id(assignment_id, message.run)
    parent_id = _uuid(message.parent_id, "parent_id") if message.parent_id else None
    if message.run < 0 or message.ordinal < 0 or len(message.prompt_sha256) != SHA256_BYTES:
        raise ValueError("its run or ordinal is negative, or its prompt has no SHA-256")
    own_id = turn_id(session, message.parent_id, message.prompt_sha256, message.ordinal)
    if message.id != own_id:
        raise ValueError(f"the turn {message.id!r} should have the id {own_id}")
    return ReceivedTurn(
        key=key,
        session_id=session,
        assignment_id=assignment_id,
        run=message.run,
        lease_token=_uuid(message.lease_token, "lease_token"),
        turn_id=own_id,
        parent_id=parent_id,
        prompt_sha256=message.prompt_sha256,
        ordinal=message.ordinal,
        content_hash=_hash(message.payload),
        body=message.payload,
        producer=producer,
        sequence=message.sequence,
        media=_media(message.media_sha256),
        call_id=_uuid(message.call_id, "call_id") if message.session_id else None,
    )


def _read_result(subject: str, producer: str, message: pb.RunResult) -> Result:
    key = _key_of(subject, message)
    if message.run < 0 or message.attempt < 0:
        raise ValueError("its run or attempt is negative")
    is_complete = message.state == pb.RunResult.STATE_COMPLETE
    if not is_complete and message.state != pb.RunResult.STATE_FAILED:
        raise ValueError("it is neither complete nor failed")
    if message.experiences and not is_complete:
        raise ValueError("it failed, yet has experiences")
    _check_steps(message.experiences)
    first = message.experiences[0] if message.experiences else pb.Experience()
    experiences = tuple(
        _read_experience(message, first, experience) for experience in message.experiences
    )
    return Result(
        key=key,
        assignment_id=_uuid(message.assignment_id, "assignment_id"),
        taskset=first.taskset,
        task_index=first.task_index,
        explore_step=first.eid.explore_step,
        position=first.eid.position,
        run=message.run,
        attempt=message.attempt,
        is_complete=is_complete,
        reason=sanitize_text(message.reason)[:MAX_REASON_LENGTH],
        metrics=_named(message.metrics),
        duration_seconds=_finite_or_zero(message.duration_seconds),
        producer=producer,
        sequence=message.sequence,
        content_hash=_content_hash(message, experiences),
        experiences=experiences,
        traceparent=message.traceparent,
    )


def _content_hash(message: pb.RunResult, experiences: Sequence[ReceivedSample]) -> bytes:
    """Hashes the result without its experiences, which are cleared, and their hashes."""
    message.ClearField("experiences")
    head = message.SerializeToString(deterministic=True)
    return _hash(_hash(head) + b"".join(record.content_hash for record in experiences))


def _check_steps(experiences: Iterable[pb.Experience]) -> None:
    places = [(experience.eid.step, experience.eid.suffix) for experience in experiences]
    if places != sorted(set(places)):
        raise ValueError("its experiences are not in order of their steps, each once")


def _read_experience(
    result: pb.RunResult, first: pb.Experience, message: pb.Experience
) -> ReceivedSample:
    eid = message.eid
    owner = (message.tenant, message.experiment_id, message.assignment_id)
    if owner != (result.tenant, result.experiment_id, result.assignment_id):
        raise ValueError("an experience belongs to another assignment")
    place = (eid.stage, eid.explore_step, eid.position, eid.run, eid.attempt)
    own = (result.stage, first.eid.explore_step, first.eid.position, result.run, result.attempt)
    if place != own or (message.taskset, message.task_index) != (first.taskset, first.task_index):
        raise ValueError("an experience's EID is not the run's")
    if len(eid.suffix.encode()) > MAX_SUFFIX_BYTES:
        raise ValueError(f"the suffix of an EID has more than {MAX_SUFFIX_BYTES} bytes")
    own_id = experience_id(result.assignment_id, eid.run, eid.attempt, eid.step, eid.suffix)
    if message.id != own_id:
        raise ValueError(f"the experience {message.id!r} should have the id {own_id}")
    num_tokens, response_length = check_experience_message(message)
    reward = message.reward if message.HasField("reward") else None
    if reward is None and message.reward_state != pb.REWARD_STATE_AWAITING_FEEDBACK:
        raise ValueError("an experience has no reward and awaits no feedback")
    body = message.SerializeToString(deterministic=True)
    versions = [span.version for span in message.version_spans]
    return ReceivedSample(
        experience_id=own_id,
        step=eid.step,
        suffix=eid.suffix,
        reward=reward,
        finish_reason=finish_reason_of(message).value,
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        num_tokens=num_tokens,
        response_length=response_length,
        metrics=_named(message.metrics) | _named(message.reward_parts),
        content_hash=_hash(body),
        turn_sha256=b"".join(checked_turn_digests(message)),
        body=body,
        media=_media(blob.sha256 for blob in message.blobs),
    )


def _media(hashes: Iterable[bytes]) -> frozenset[bytes]:
    found = frozenset(hashes)
    if any(len(sha256) != SHA256_BYTES for sha256 in found):
        raise ValueError("it refers to an image by something other than a SHA-256")
    return found


def _uuid(text: str, name: str) -> str:
    if CANONICAL_UUID.fullmatch(text):
        return text
    try:
        canonical = str(uuid.UUID(text))
    except ValueError as error:
        raise ValueError(f"its {name} {text!r} is not a UUID") from error
    if canonical != text:
        raise ValueError(f"its {name} {text!r} is not written as {canonical}")
    return canonical


def _named(numbers: Mapping[str, float]) -> dict[str, float]:
    return {sanitize_text(name): numbers[name] for name in numbers}  # items() of a message is slow


def _finite_or_zero(number: float) -> float:
    return number if math.isfinite(number) else 0.0


def _hash(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def decode_sample(body: bytes) -> SampleText:
    """Returns a stored experience as text."""
    message = pb.Experience.FromString(body)
    sequence = message.sequence if message.HasField("sequence") else message.pair.chosen
    return SampleText.clipped(
        sanitize_text(sequence.prompt_text),
        sanitize_text(sequence.response_text),
        message.reward if message.HasField("reward") else None,
    )
