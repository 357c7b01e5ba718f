"""Every text, map and list of every request and result has a bound in bytes, which is held."""

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.unit.rpc.descriptors import RESULTS, fields_of, has_any_size, requests, sized_names
from tests.unit.subtests import as_subtests
from trinity.api.v1 import buffer_pb2, experience_pb2, query_pb2, synchronizer_pb2
from trinity.errors import InvalidRequest
from trinity.runtime.rpc.bounds import (
    BOUNDS,
    KIB,
    LIST_BYTES,
    MIB,
    SAMPLE_BYTES,
    USUAL_BYTES,
    bound_of,
    check_bounds,
    clip_text,
    name_of,
)
from trinity.runtime.rpc.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES


def all_fields() -> list[FieldDescriptor]:
    return fields_of([*requests(), RESULTS])


def test_every_field_of_a_request_has_a_bound_below_that_of_a_request() -> None:
    fields = [field for field in fields_of(requests()) if has_any_size(field)]
    assert len(fields) > 80
    assert all(0 < bound_of(field) <= MAX_REQUEST_BYTES for field in fields)


def test_every_field_of_a_result_has_a_bound_below_that_of_a_blob() -> None:
    fields = [field for field in fields_of([RESULTS]) if has_any_size(field)]
    assert len(fields) > 40
    assert all(0 < bound_of(field) <= MAX_MESSAGE_BYTES for field in fields)
    assert bound_of(RESULTS.fields_by_name["results"]) == MAX_MESSAGE_BYTES


def test_the_table_names_fields_that_there_are() -> None:
    there = {name_of(field) for field in all_fields()}
    there |= {field.message_type.name for field in all_fields() if field.message_type is not None}
    assert set(BOUNDS) - there == set()


def filled(field: FieldDescriptor, num_bytes: int) -> Message:
    """A message with so many bytes in a field, or a little more."""
    assert field.containing_type is not None
    message = GetMessageClass(field.containing_type)()
    value: Any = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        _fill_map(value, kind, num_bytes)
    elif kind is not None and field.is_repeated:
        part = _padded(GetMessageClass(kind)())
        value.extend([part] * (num_bytes // part.ByteSize() + 1))
    elif kind is not None:
        value.update({str(number): "x" * 10_000 for number in range(num_bytes // 10_000 + 1)})
    elif field.is_repeated:
        texts = {FieldDescriptor.TYPE_STRING: "x" * 100, FieldDescriptor.TYPE_BYTES: b"x" * 100}
        item = texts.get(field.type, 1)
        value.extend([item] * (num_bytes // (8 if item == 1 else 100) + 1))
    else:
        text = "x" * (num_bytes + 1)
        is_text = field.type == FieldDescriptor.TYPE_STRING
        setattr(message, field.name, text if is_text else text.encode())
    return message


def _fill_map(value: Any, kind: Any, num_bytes: int) -> None:
    for number in range(num_bytes // 1_000 + 1):
        name = f"{number:01000}"
        if kind.fields_by_name["value"].message_type is None:
            value[name] = 1.0
        else:
            value[name].SetInParent()


def _padded(part: Message) -> Message:
    """A part of some bytes in which no field is too long by itself."""
    for field in part.DESCRIPTOR.fields:
        if field.is_repeated or field.containing_oneof is not None:
            continue
        if field.message_type is not None:
            getattr(part, field.name).SetInParent()
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(part, field.name, "x" * 200)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(part, field.name, b"x" * 200)
        else:
            setattr(part, field.name, 1)
    return part


SMALL = 300 * KIB
"""Larger bounds are tried by themselves."""
TRIED = [
    field
    for field in all_fields()
    if name_of(field) in sized_names([*requests(), RESULTS]) and bound_of(field) <= SMALL
]


@as_subtests(("name", "field"), [(name_of(field), field) for field in TRIED])
def test_a_field_beyond_its_bound_is_refused_by_its_name(name: str, field: FieldDescriptor) -> None:
    bound = bound_of(field)
    check_bounds(filled(field, bound * 3 // 4))
    with pytest.raises(InvalidRequest, match=f"{name}: has [0-9,]+ bytes, and at most"):
        check_bounds(filled(field, bound * 5 // 4))


def tomorrow() -> type[Message]:
    """The contract of a member with a text, a list and a map more."""
    file = descriptor_pb2.FileDescriptorProto()
    synchronizer_pb2.DESCRIPTOR.CopyToProto(file)
    member = next(message for message in file.message_type if message.name == "Member")
    text, number = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_INT64
    member.field.add(name="nickname", number=90, type=text, label=1)
    member.field.add(name="lucky_numbers", number=91, type=number, label=3)
    member.field.add(name="age", number=92, type=number, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("trinity.api.v1.Member"))


def test_a_field_of_tomorrow_has_the_usual_bound() -> None:
    """The control of the walk: what is added is found and held without a line in the table."""
    kind: Any = tomorrow()
    found = sized_names([kind.DESCRIPTOR])
    known = sized_names([synchronizer_pb2.DESCRIPTOR.message_types_by_name["Member"]])
    assert found - known == {"Member.nickname", "Member.lucky_numbers"}
    check_bounds(kind(nickname="x" * USUAL_BYTES, lucky_numbers=range(LIST_BYTES // 8)))
    with pytest.raises(InvalidRequest, match=r"Member\.nickname: has 16,385 bytes"):
        check_bounds(kind(nickname="x" * (USUAL_BYTES + 1)))
    with pytest.raises(InvalidRequest, match=r"Member\.lucky_numbers: has"):
        check_bounds(kind(lucky_numbers=range(LIST_BYTES // 8 + 1)))


def test_one_sample_leaves_room_for_what_is_known_about_it() -> None:
    side = experience_pb2.Sequence(prompt_text="x" * 13 * MIB, response_text="x" * 13 * MIB)
    result = experience_pb2.RunResult()
    result.experiences.add().pair.chosen.CopyFrom(side)
    check_bounds(result)
    result.experiences[0].pair.rejected.CopyFrom(side)
    with pytest.raises(InvalidRequest, match=f"^Experience: has .* at most {SAMPLE_BYTES:,}"):
        check_bounds(result)


def test_a_clipped_text_ends_with_a_whole_letter() -> None:
    assert clip_text("\N{SNOWMAN}" * 4_000, 4_000) == "\N{SNOWMAN}" * (4_000 // 3)
    assert clip_text("short", 100) == "short"
    assert clip_text("\ud800" * 100, 10) == "?" * 10


def test_what_clients_send_is_taken() -> None:
    check_bounds(synchronizer_pb2.CreateExperimentRequest(plan_json="x" * 3_000_000))
    pinned = synchronizer_pb2.Member(pinned_versions=range(2_000), activity="x" * 10_000)
    check_bounds(synchronizer_pb2.HeartbeatRequest(member=pinned))
    check_bounds(buffer_pb2.UploadBlobRequest(chunk=b"x" * 2**20))
    leases = [buffer_pb2.Lease(assignment_id="a" * 36) for _ in range(4_096)]
    check_bounds(buffer_pb2.RenewLeasesRequest(leases=leases))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (synchronizer_pb2.CreateExperimentRequest(label="x" * 20_000), "label"),
        (synchronizer_pb2.CancelExperimentRequest(reason="x" * 3_600_000), "reason"),
        (
            synchronizer_pb2.HeartbeatRequest(
                member=synchronizer_pb2.Member(
                    waits=[synchronizer_pb2.Wait(reason="x" * 4_000) for _ in range(900)]
                )
            ),
            "HeartbeatRequest.member",
        ),
        (query_pb2.ListExperiencesRequest(cursor="x" * 3_000_000), "cursor"),
        (
            query_pb2.GiveFeedbackRequest(
                feedback=[query_pb2.Feedback(experience_id="x" * 100_000)]
            ),
            "Feedback.experience_id",
        ),
        (
            query_pb2.GiveFeedbackRequest(
                feedback=[
                    query_pb2.Feedback(reward_parts={"x" * 2_000 + str(n): 1.0 for n in range(200)})
                ]
            ),
            "reward_parts",
        ),
        (buffer_pb2.WatchCommitsRequest(sequences=range(10**6, 10**6 + 100_000)), "sequences"),
    ],
)
def test_a_field_with_too_many_bytes_is_refused_by_name(request_: object, named: str) -> None:
    with pytest.raises(InvalidRequest, match="bytes, and at most") as told:
        check_bounds(request_)  # type: ignore[arg-type]
    assert named in str(told.value)


def test_a_field_at_its_bound_is_taken() -> None:
    check_bounds(synchronizer_pb2.CreateExperimentRequest(label="x" * USUAL_BYTES))


def test_a_long_reason_of_a_failure_is_taken() -> None:
    """It is cut where it is stored; refused, the failure would not be told."""
    check_bounds(synchronizer_pb2.FailStageRequest(reason="x" * 1_000_000))
