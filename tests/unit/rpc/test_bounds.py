"""Every text, map and list of every request has a bound in bytes, which the guard holds."""

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from trinity.api.v1 import buffer_pb2, query_pb2, synchronizer_pb2
from trinity.errors import InvalidRequest, QuotaExceeded
from trinity.rpc.bounds import BOUNDS, USUAL_BYTES, bound_of, check_bounds, name_of
from trinity.rpc.channel import _CONTRACTS
from trinity.rpc.errors import status_code
from trinity.rpc.guard import OpenStreams
from trinity.rpc.limits import MAX_REQUEST_BYTES
from trinity.security.authorization import LOCAL_CALLER, Caller


def requests() -> Iterator[Descriptor]:
    for file in _CONTRACTS:
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from (method.input_type for method in service.methods)


def fields_of(kind: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    if kind.full_name in seen:
        return
    seen.add(kind.full_name)
    for field in kind.fields:
        yield field
        if field.message_type is not None:
            yield from fields_of(field.message_type, seen)


def all_fields() -> list[FieldDescriptor]:
    seen: set[str] = set()
    return [field for kind in requests() for field in fields_of(kind, seen)]


def test_every_field_of_every_request_has_a_bound_below_that_of_a_request() -> None:
    fields = all_fields()
    assert len(fields) > 150
    assert all(0 < bound_of(field) <= MAX_REQUEST_BYTES for field in fields)


def test_the_table_names_fields_that_there_are() -> None:
    there = {name_of(field) for field in all_fields()}
    assert set(BOUNDS) - there == set()


def test_what_clients_send_is_taken() -> None:
    check_bounds(synchronizer_pb2.CreateExperimentRequest(plan_json="x" * 3_000_000))
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


def caller_of(tenant: str) -> Caller:
    return Caller(subject="s", tenant=tenant, scopes=frozenset(), expires_at=2e9)


def test_a_tenant_has_so_many_streams_and_others_are_not_counted_with_it() -> None:
    streams = OpenStreams(max_per_tenant=2)
    with streams.opened_by(caller_of("a")):
        with streams.opened_by(caller_of("a")):
            with (
                pytest.raises(QuotaExceeded, match="tenant a has 2 streams") as told,
                streams.opened_by(caller_of("a")),
            ):
                pass
            assert status_code(told.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
            with streams.opened_by(caller_of("b")):
                pass
        with streams.opened_by(caller_of("a")):
            pass
    for _ in range(5):
        with streams.opened_by(LOCAL_CALLER):
            pass
