"""What requests say, checked and in the domain's words."""

import uuid
from collections.abc import Iterable

from services.buffer.store.training import Checkpoint, Version
from trinity.api.v1 import buffer_pb2 as pb
from trinity.codec import stage_key_from_proto
from trinity.errors import InvalidRequest
from trinity.rpc.limits import MAX_WAIT_SECONDS
from trinity.types import StageKey

SHA256_BYTES = 32


def key_of(message: pb.StageKey) -> StageKey:
    """Raises: InvalidRequest when the key is incomplete."""
    try:
        key = stage_key_from_proto(message)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    for name, part in (("tenant", key.tenant), ("stage", key.stage)):
        if any(c in part for c in ".*> \t\r\n\x00"):
            raise InvalidRequest(f"the {name} {part!r} holds a character that a subject cannot")
    return key


def text_of(text: str, name: str) -> str:
    """Raises: InvalidRequest when a database could not hold it."""
    if "\x00" in text:
        raise InvalidRequest(f"the {name} holds a null character")
    return text


def uuid_of(text: str, name: str) -> str:
    """Raises: InvalidRequest when it is no UUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise InvalidRequest(f"{name} {text!r} is not a UUID") from error


def hash_of(value: bytes, name: str) -> bytes:
    """Raises: InvalidRequest when it has not the length of a SHA-256."""
    if len(value) != SHA256_BYTES:
        raise InvalidRequest(f"{name} has {len(value)} bytes, a SHA-256 has {SHA256_BYTES}")
    return value


def wait_of(seconds: float) -> float:
    """Raises: InvalidRequest when a wait is negative or too long."""
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidRequest(f"wait_seconds {seconds} is outside 0..{MAX_WAIT_SECONDS:.0f}")
    return seconds


def lease_seconds_of(seconds: float) -> float:
    """Raises: InvalidRequest when a lease would not last, or last more than a day."""
    if not 0 < seconds <= 86_400:
        raise InvalidRequest(f"lease_seconds {seconds} is outside 0..86400")
    return seconds


def tokens_of(leases: Iterable[pb.Lease]) -> dict[str, str]:
    """Lease tokens by assignment."""
    return {
        uuid_of(lease.assignment_id, "assignment_id"): uuid_of(lease.lease_token, "lease_token")
        for lease in leases
    }


def version_of(message: pb.PublishedVersion) -> Version:
    """Raises: InvalidRequest when it cannot be."""
    if message.version < 0:
        raise InvalidRequest(f"version {message.version} is negative")
    return Version(
        version=message.version,
        incarnation=message.incarnation,
        weights_sha256=hash_of(message.weights_sha256, "weights_sha256"),
    )


def checkpoint_of(message: pb.Checkpoint) -> Checkpoint:
    """Raises: InvalidRequest when it cannot be."""
    if message.step < 0 or not message.path:
        raise InvalidRequest("a checkpoint needs a step and a path")
    return Checkpoint(
        step=message.step,
        incarnation=message.incarnation,
        path=text_of(message.path, "path"),
        manifest_sha256=hash_of(message.manifest_sha256, "manifest_sha256"),
    )


def checkpoint_to_proto(one: Checkpoint) -> pb.Checkpoint:
    """The same checkpoint on the wire."""
    return pb.Checkpoint(
        step=one.step,
        incarnation=one.incarnation,
        path=one.path,
        manifest_sha256=one.manifest_sha256,
    )


def version_to_proto(one: Version) -> pb.PublishedVersion:
    """The same weights on the wire."""
    return pb.PublishedVersion(
        version=one.version, incarnation=one.incarnation, weights_sha256=one.weights_sha256
    )
