"""As whom a request speaks is found wherever its type keeps it."""

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.security.authorization import (
    EXPERIMENT,
    TENANT,
    Scope,
    experiments_of,
    field_paths,
    roles_of,
    tenants_of,
)


def test_a_role_is_found_at_the_top_and_in_a_member() -> None:
    beat = pb.HeartbeatRequest(member=pb.Member(role=pb.ROLE_BUFFER))
    end = pb.FinishRoleRequest(role=pb.ROLE_TRAINER)
    failure = pb.FailStageRequest(role=pb.ROLE_EXPLORER)
    found = [roles_of(one) for one in (beat, end, failure)]
    assert found == [{Scope.BUFFER}, {Scope.TRAINER}, {Scope.EXPLORER}]


def test_no_role_and_what_is_none_are_nobodys() -> None:
    assert roles_of(pb.HeartbeatRequest()) == set()
    assert roles_of(pb.FailStageRequest(role=17)) == set()  # type: ignore[arg-type]
    assert roles_of(buffer_pb2.GetBatchRequest()) == set()


def test_every_role_is_a_scope() -> None:
    for value in pb.Role.DESCRIPTOR.values:
        if value.number:
            assert roles_of(pb.FinishRoleRequest(role=value.name)) == {
                Scope(value.name.removeprefix("ROLE_").lower())
            }


def test_a_tenant_is_found_at_the_top_in_a_key_and_in_a_header() -> None:
    blob = buffer_pb2.UploadBlobRequest(tenant="a")
    lease = buffer_pb2.RenewLeasesRequest(key=buffer_pb2.StageKey(tenant="a"))
    taskset = buffer_pb2.SubmitTasksetRequest(header=buffer_pb2.TasksetHeader(tenant="a"))
    assert [tenants_of(one) for one in (blob, lease, taskset)] == [["a"]] * 3


def test_a_request_that_could_name_one_and_does_not_names_an_empty_one() -> None:
    assert tenants_of(buffer_pb2.RenewLeasesRequest()) == [""]
    assert tenants_of(synchronizer_pb2.GetExperimentRequest()) is None


def test_an_experiment_is_found_where_there_is_no_tenant() -> None:
    beat = synchronizer_pb2.HeartbeatRequest(member=synchronizer_pb2.Member(experiment_id="x"))
    assert experiments_of(beat) == ["x"]
    assert experiments_of(synchronizer_pb2.HeartbeatRequest()) == []


def test_every_element_of_a_list_counts() -> None:
    response = synchronizer_pb2.WatchExperimentsResponse(
        experiments=[synchronizer_pb2.Experiment(tenant=tenant) for tenant in "ab"]
    )
    assert tenants_of(response) == ["a", "b"]
    assert field_paths(response.DESCRIPTOR, EXPERIMENT) == ()
    assert field_paths(response.DESCRIPTOR, TENANT) == (("experiments", "tenant"),)
