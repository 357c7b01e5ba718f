"""Validates fields of requests, and converts between protobuf and domain values."""

import re
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from google.protobuf.message import Message

from services.buffer.store.tasksets import PipelineCounts
from services.buffer.store.training import Checkpoint, RecordedVersion
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import taskset_pb2
from trinity.errors import InvalidRequest, TooLarge
from trinity.runtime.rpc.answers import first_within
from trinity.runtime.rpc.bounds import clip_text
from trinity.runtime.rpc.limits import MAX_WAIT_SECONDS
from trinity.runtime.uuids import CANONICAL_UUID, are_canonical
from trinity.types import StageKey

ValueT = TypeVar("ValueT")
MessageT = TypeVar("MessageT", bound=Message)

SHA256_BYTES = 32
MAX_NAME_BYTES = 500
"""Limit for names of tenants, stages and tasksets: three of them fit into one index entry."""
MAX_TEXT_LENGTH = 4_000
LEFT_OUT_BYTES = 64 * 1024
"""Limit for the reasons of a task pipeline, which users' operators may give."""
MAX_LISTED = 10_000
MEDIA_TYPE_LENGTH = 40
MEDIA_TYPE = re.compile(rf"image/[a-z0-9.+-]{{1,{MEDIA_TYPE_LENGTH}}}")
"""Most leases, rows or metrics in one request."""
NOT_IN_SUBJECTS = frozenset(".*> \x7f") | {chr(code) for code in range(32)}


def parse_stage_key(message: pb.StageKey) -> StageKey:
    """Validates a stage key.

    Raises: InvalidRequest when the key is incomplete.
    """
    return StageKey(
        tenant=parse_subject_part(message.tenant, "key.tenant"),
        experiment_id=parse_uuid(message.experiment_id, "key.experiment_id"),
        stage=parse_subject_part(message.stage, "key.stage"),
    )


def parse_subject_part(text: str, name: str) -> str:
    """Validates a token of a broker subject.

    Raises: InvalidRequest when it is too long or has a character that subjects cannot hold.
    """
    if not NOT_IN_SUBJECTS.isdisjoint(parse_name(text, name)):
        raise InvalidRequest(f"the {name} {text!r} holds a character that a subject cannot")
    return text


def parse_name(text: str, name: str) -> str:
    """Validates a name.

    Raises: InvalidRequest when it is empty, too long, or cannot be stored in the database.
    """
    if not text:
        raise InvalidRequest(f"the {name} is missing")
    if len(text.encode()) > MAX_NAME_BYTES:
        raise InvalidRequest(f"the {name} has more than {MAX_NAME_BYTES} bytes")
    return parse_text(text, name)


def parse_text(text: str, name: str) -> str:
    """Validates a text.

    Raises: InvalidRequest when it cannot be stored in the database.
    """
    if "\x00" in text:
        raise InvalidRequest(f"the {name} holds a null character")
    return text


def clean_reason(text: str) -> str:
    """Truncates and cleans a reason instead of rejecting it: it may be the only explanation."""
    return text.replace("\x00", "")[:MAX_TEXT_LENGTH]


def parse_uuid(text: str, name: str) -> str:
    """Returns the canonical form of a UUID.

    Raises: InvalidRequest when it is not a UUID.
    """
    if CANONICAL_UUID.fullmatch(text):
        return text
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise InvalidRequest(f"{name} {text[:60]!r} is not a UUID") from error


def parse_uuids(texts: Sequence[str], name: str) -> Sequence[str]:
    """Returns the canonical forms of UUIDs.

    Raises: InvalidRequest when any of them is not a UUID.
    """
    return texts if are_canonical(texts) else [parse_uuid(text, name) for text in texts]


def check_max_items(items: Sequence[ValueT], name: str, most: int = MAX_LISTED) -> Sequence[ValueT]:
    """Validates the number of items.

    Raises: TooLarge when there are too many.
    """
    if len(items) > most:
        raise TooLarge(f"{name}: at most {most} are taken at once, there are {len(items)}")
    return items


def parse_sha256(value: bytes, name: str) -> bytes:
    """Validates a hash.

    Raises: InvalidRequest when it does not have the length of a SHA-256.
    """
    if len(value) != SHA256_BYTES:
        raise InvalidRequest(f"{name} has {len(value)} bytes, a SHA-256 has {SHA256_BYTES}")
    return value


def parse_media_type(text: str) -> str:
    """Validates the media type of an upload, which is empty unless it is an image.

    Raises: InvalidRequest.
    """
    if text and not MEDIA_TYPE.fullmatch(text):
        raise InvalidRequest(f"media_type is {text[:MEDIA_TYPE_LENGTH]!r}, not image/...")
    return text


def parse_wait_seconds(seconds: float) -> float:
    """Validates the duration of a long poll.

    Raises: InvalidRequest when it is negative or too long.
    """
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidRequest(f"wait_seconds {seconds} is outside 0..{MAX_WAIT_SECONDS:.0f}")
    return seconds


def parse_lease_seconds(seconds: float) -> float:
    """Validates the duration of a lease.

    Raises: InvalidRequest when it is not positive or more than a day.
    """
    if not 0 < seconds <= 86_400:
        raise InvalidRequest(f"lease_seconds {seconds} is outside 0..86400")
    return seconds


def parse_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Validates metrics.

    Raises: TooLarge when there are too many, InvalidRequest when a name is too long.
    """
    if len(metrics) > MAX_LISTED:
        raise TooLarge(f"metrics: at most {MAX_LISTED} are taken, there are {len(metrics)}")
    if any(len(name.encode()) > MAX_NAME_BYTES for name in metrics):
        raise InvalidRequest(f"metrics: a name has more than {MAX_NAME_BYTES} bytes")
    return dict(metrics)


def parse_lease_tokens(leases: Sequence[pb.Lease]) -> dict[str, str]:
    """Returns lease tokens by assignment.

    Raises: TooLarge when there are too many, InvalidRequest when an id or a token is not a UUID.
    """
    few = check_max_items(leases, "leases")
    ids = parse_uuids([lease.assignment_id for lease in few], "leases.assignment_id")
    tokens = parse_uuids([lease.lease_token for lease in few], "leases.lease_token")
    return dict(zip(ids, tokens, strict=True))


def parse_version(message: pb.PublishedVersion) -> RecordedVersion:
    """Converts a published version.

    Raises: InvalidRequest when it is negative or its hash has the wrong length.
    """
    if message.version < 0:
        raise InvalidRequest(f"version.version {message.version} is negative")
    sha256, blake3 = message.weights_sha256, message.weights_blake3
    return RecordedVersion(
        version=message.version,
        incarnation=message.incarnation,
        weights_sha256=_parse_root(sha256, "version.weights_sha256", is_needed=not blake3),
        weights_blake3=_parse_root(blake3, "version.weights_blake3", is_needed=False),
        lineage_sha256=_parse_lineage(message, "version"),
    )


def _parse_root(value: bytes, name: str, *, is_needed: bool) -> bytes:
    """Validates a root of weights; of two roots one is enough."""
    return parse_sha256(value, name) if value or is_needed else b""


def parse_checkpoint(message: pb.Checkpoint) -> Checkpoint:
    """Converts a checkpoint.

    Raises: InvalidRequest when its step, path or hash is invalid.
    """
    if message.step < 0 or not message.path or len(message.path) > MAX_TEXT_LENGTH:
        raise InvalidRequest(
            f"checkpoint needs a step from 0 on, and a path of at most {MAX_TEXT_LENGTH} characters"
        )
    return Checkpoint(
        step=message.step,
        incarnation=message.incarnation,
        path=parse_text(message.path, "checkpoint.path"),
        manifest_sha256=parse_sha256(message.manifest_sha256, "checkpoint.manifest_sha256"),
        lineage_sha256=_parse_lineage(message, "checkpoint"),
    )


def _parse_lineage(message: pb.PublishedVersion | pb.Checkpoint, name: str) -> bytes | None:
    digest = message.lineage_sha256
    return parse_sha256(digest, f"{name}.lineage_sha256") if digest else None


def fields_of(kind: Any, value: Any) -> dict[str, Any]:
    """Returns the fields of a message that a value has under the same names."""
    return {name: getattr(value, name) for name in _shared(kind, value.__class__)}


@lru_cache(maxsize=256)
def _shared(kind: type[Message], of: Any) -> tuple[str, ...]:
    return tuple(kind.DESCRIPTOR.fields_by_name.keys() & of.__dataclass_fields__.keys())


def to_message(kind: type[MessageT], value: object, /, **others: Any) -> MessageT:
    """Converts a value to protobuf by the names of its fields; `others` add to them or differ."""
    return kind(**fields_of(kind, value) | others)


def pipeline_to_proto(counts: PipelineCounts) -> taskset_pb2.TaskPipelineCounts:
    """Converts the counts of a task pipeline, most frequent reasons first."""
    reasons = sorted(counts.left_out.items(), key=lambda item: (-item[1], item[0]))
    left_out = first_within(
        (
            taskset_pb2.TasksLeftOut(reason=clip_text(reason, MAX_TEXT_LENGTH), num_rows=number)
            for reason, number in reasons
        ),
        LEFT_OUT_BYTES,
    )
    num_reasons_left_out = len(reasons) - len(left_out)
    return to_message(
        taskset_pb2.TaskPipelineCounts,
        counts,
        left_out=left_out,
        num_reasons_left_out=num_reasons_left_out,
    )
