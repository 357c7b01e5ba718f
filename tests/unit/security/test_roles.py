"""As whom a request speaks is found wherever its type keeps it."""

from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.security.authorization import Scope, roles_of


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
