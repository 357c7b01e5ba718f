"""Bounds in bytes of every text, map and list that a request or a result may hold.

Requests come over gRPC, results over the broker. A message of up to `SMALL_BYTES` is taken as it
is: no field in it can exceed its bound. In a larger one each field has the bound that the table
names, or the usual one.
"""

from collections.abc import Iterable, Iterator, Mapping

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from trinity.errors import InvalidRequest
from trinity.runtime.rpc.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES

KIB, MIB = 1024, 1024 * 1024
SMALL_BYTES = 16 * KIB
USUAL_BYTES = 16 * KIB
"""Texts for people, names, and short lists."""
LIST_BYTES = 256 * KIB
"""Lists and maps of small things: ids, numbers, notices."""
SAMPLE_BYTES = 48 * MIB
"""A sample goes into one message of at most 64 MiB, together with its metadata."""
BOUNDS: Mapping[str, int] = {
    "CreateExperimentRequest.plan_json": 3 * MIB,
    "OpenStageRequest.plan_json": MAX_REQUEST_BYTES,
    "UploadBlobRequest.chunk": MAX_REQUEST_BYTES,
    "TaskRow.json": MAX_REQUEST_BYTES,
    "TaskRows.json": MAX_REQUEST_BYTES,
    "GiveFeedbackRequest.feedback": MAX_REQUEST_BYTES,
    "ReportStepRequest.rows": MAX_REQUEST_BYTES,
    "HeldLeases.leases": MIB,
    "RenewLeasesRequest.leases": MIB,
    "ReleaseLeasesRequest.leases": MIB,
    "RetireVersionsRequest.versions": MIB,
    "HeartbeatRequest.member": 256 * KIB,
    "HostReport.event_json": MIB,
    "RunResultBatch.results": MAX_MESSAGE_BYTES,
    "RunResultBatch.turns": MAX_MESSAGE_BYTES,
    "SessionTurn.payload": SAMPLE_BYTES,
    "RunResult.experiences": MAX_MESSAGE_BYTES,
    "Experience": SAMPLE_BYTES,
    "Experience.arrays": SAMPLE_BYTES,
    "Experience.info": 4 * MIB,
    "Struct.fields": 4 * MIB,
    "Tensor.data": SAMPLE_BYTES,
    "Sequence.prompt_text": 16 * MIB,
    "Sequence.response_text": 16 * MIB,
    "SamplingParams.json_schema": MIB,
}
"""By message and field, or by message for one that is answered whole. A repeated field's bound is
for all its items together."""
EXPLANATIONS = frozenset({"activity", "damage", "reason"})
"""Why something failed or waits: cut short where it is stored, and refused only when huge. A part
that ends with a long traceback must be able to say so."""
EXPLANATION_BYTES = MIB


def check_bounds(message: Message) -> None:
    """Checks every field of a request or a result.

    Raises: InvalidRequest that names the field, its bytes and its bound.
    """
    if message.ByteSize() > SMALL_BYTES:
        for field, num_bytes, bound in _large_fields(message):
            if num_bytes > bound:
                raise InvalidRequest(
                    f"{field}: has {num_bytes:,} bytes, and at most {bound:,} are taken: send "
                    "less, or in several requests"
                )


def bound_of(field: FieldDescriptor) -> int:
    """Returns the bound of a field in bytes; for a repeated field, of all its items."""
    named = BOUNDS.get(name_of(field))
    if named is not None:
        return named
    if field.name in EXPLANATIONS:
        return EXPLANATION_BYTES
    if field.message_type is not None and not field.is_repeated:
        return MAX_MESSAGE_BYTES  # the message's fields are bounded, too
    return LIST_BYTES if field.is_repeated else USUAL_BYTES


def name_of(field: FieldDescriptor) -> str:
    """Returns `Message.field`."""
    return ".".join(field.full_name.split(".")[-2:])


def _large_fields(message: Message) -> Iterator[tuple[str, int, int]]:
    for field, value in message.ListFields():
        yield name_of(field), _size_of(field, value), bound_of(field)
        if field.message_type is None or isinstance(value, Mapping):
            continue
        for part in value if field.is_repeated else (value,):
            num_bytes = part.ByteSize()
            if num_bytes > SMALL_BYTES:
                kind = field.message_type.name
                yield kind, num_bytes, BOUNDS.get(kind, MAX_MESSAGE_BYTES)
                yield from _large_fields(part)


def _size_of(field: FieldDescriptor, value: object) -> int:
    if isinstance(value, Mapping):
        return sum(_bytes_of(key) + _bytes_of(item) for key, item in value.items())
    return (
        sum(map(_bytes_of, value))
        if isinstance(value, Iterable) and field.is_repeated
        else (_bytes_of(value))
    )


def _bytes_of(item: object) -> int:
    if isinstance(item, Message):
        return item.ByteSize()
    if isinstance(item, str):
        return len(item.encode())
    return len(item) if isinstance(item, bytes) else 8


def clip_text(text: str, max_bytes: int) -> str:
    """Returns the longest beginning of a text within a number of bytes."""
    if len(text) * 4 <= max_bytes:
        return text
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")
