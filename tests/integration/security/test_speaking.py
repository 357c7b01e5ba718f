"""Who reports to the synchronizer does so as itself: in its token's role, tenant and name."""

import uuid

import grpc
import pytest

from tests.integration.security.secured import JUDGE_KEY, Refusal, Secured
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.security.authorization import Scope

pytestmark = pytest.mark.asyncio(loop_scope="package")

SERVICE = "trinity.api.v1.SynchronizerService"
DENIED = grpc.StatusCode.PERMISSION_DENIED
ROLES = {
    Scope.EXPLORER: pb.ROLE_EXPLORER,
    Scope.TRAINER: pb.ROLE_TRAINER,
    Scope.BUFFER: pb.ROLE_BUFFER,
}
OTHERS = [(mine, other) for mine in ROLES for other in ROLES if mine is not other]


def beat(
    role: pb.Role,
    *,
    member: str = "",
    experiment: str = "",
    phase: pb.MemberPhase = pb.MEMBER_PHASE_WORKING,
) -> bytes:
    """A heartbeat of whoever it says it is of."""
    return pb.HeartbeatRequest(
        member=pb.Member(
            id=member or str(uuid.uuid4()),
            role=role,
            experiment_id=experiment,
            stage="rft" if experiment else "",
            activity="testing",
            phase=phase,
            version=-1,
        )
    ).SerializeToString()


async def heartbeat(
    secured: Secured, request: bytes, scope: Scope, tenant: str = "default"
) -> Refusal | bytes:
    token = secured.token(tenant=tenant, scopes=[scope])
    return await secured.call(f"{SERVICE}/Heartbeat", request, token=token)


async def members(secured: Secured) -> dict[str, pb.Member]:
    """Who is known to work on the experiment, or on none."""
    request = pb.GetStatusRequest(experiment_id=secured.ended.id).SerializeToString()
    token = secured.token(tenant="*")
    answer = await secured.call(f"{SERVICE}/GetStatus", request, token=token)
    assert isinstance(answer, bytes)
    return {one.id: one for one in pb.GetStatusResponse.FromString(answer).members}


@pytest.mark.parametrize("scope", ROLES)
async def test_a_token_beats_for_its_own_role(secured: Secured, scope: Scope) -> None:
    own = str(uuid.uuid4())
    assert isinstance(await heartbeat(secured, beat(ROLES[scope], member=own), scope), bytes)
    assert (await members(secured))[own].role == ROLES[scope]


@pytest.mark.parametrize(("scope", "other"), OTHERS)
async def test_a_token_beats_for_no_other_role(
    secured: Secured, scope: Scope, other: Scope
) -> None:
    own = str(uuid.uuid4())
    for tenant in ("default", "*"):
        answer = await heartbeat(secured, beat(ROLES[other], member=own), scope, tenant)
        words = f"the token's scopes do not allow acting as {other}"
        assert answer == Refusal(code=DENIED, details=words)
    assert own not in await members(secured)
    line = await secured.logged("synchronizer", "refused: role")
    for part in ("WARNING audit", f"method={SERVICE}/", "subject=tester", "asked="):
        assert part in line


async def test_an_explorer_ends_or_fails_no_trainers_part(secured: Secured) -> None:
    token = secured.token(scopes=[Scope.EXPLORER])
    requests = {
        "FinishRole": pb.FinishRoleRequest(
            experiment_id=secured.ended.id, stage="rft", role=pb.ROLE_TRAINER
        ),
        "FailStage": pb.FailStageRequest(
            experiment_id=secured.ended.id, stage="rft", role=pb.ROLE_TRAINER, reason="a test"
        ),
    }
    for name, request in requests.items():
        data = request.SerializeToString()
        answer = await secured.call(f"{SERVICE}/{name}", data, token=token)
        assert isinstance(answer, Refusal) and answer.code is DENIED, name


async def test_what_is_no_role_is_malformed(secured: Secured) -> None:
    answer = await heartbeat(secured, beat(pb.ROLE_UNSPECIFIED), Scope.EXPLORER)
    assert isinstance(answer, Refusal)
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_token_beats_for_no_experiment_of_another_tenant(secured: Secured) -> None:
    words = "the token is for another tenant"
    for experiment in (secured.ended.id, str(uuid.uuid4())):
        request = beat(pb.ROLE_EXPLORER, experiment=experiment)
        answer = await heartbeat(secured, request, Scope.EXPLORER, "stranger")
        assert answer == Refusal(code=DENIED, details=words)
    assert "WARNING audit" in await secured.logged("synchronizer", "refused: tenant")


async def test_nobody_takes_anothers_name(secured: Secured) -> None:
    """An id is known to who may look; its heartbeats stay those of its own role and tenant."""
    own = str(uuid.uuid4())
    working = beat(pb.ROLE_EXPLORER, member=own, experiment=secured.ended.id)
    assert isinstance(await heartbeat(secured, working, Scope.EXPLORER), bytes)
    words = "member.id: is that of another member"
    for role, scope, tenant in (
        (pb.ROLE_EXPLORER, Scope.EXPLORER, "stranger"),
        (pb.ROLE_TRAINER, Scope.TRAINER, "default"),
    ):
        idle = beat(role, member=own)
        assert await heartbeat(secured, idle, scope, tenant) == Refusal(code=DENIED, details=words)
        await heartbeat(secured, beat(role, member=own, phase=pb.MEMBER_PHASE_GONE), scope, tenant)
    assert own in await secured.logged("synchronizer", "refused: member")
    known = (await members(secured))[own]
    assert (known.role, known.activity) == (pb.ROLE_EXPLORER, "testing")
    gone = beat(pb.ROLE_EXPLORER, member=own, phase=pb.MEMBER_PHASE_GONE)
    assert isinstance(await heartbeat(secured, gone, Scope.EXPLORER), bytes)
    assert own not in await members(secured)


@pytest.mark.parametrize(
    ("scope", "is_whole"), [(Scope.EXPLORER, True), (Scope.TRAINER, True), (Scope.READ, False)]
)
async def test_a_plans_keys_are_told_to_who_acts_on_it(
    secured: Secured, scope: Scope, is_whole: bool
) -> None:
    request = pb.GetExperimentRequest(experiment_id=secured.ended.id).SerializeToString()
    token = secured.token(scopes=[scope])
    answer = await secured.call(f"{SERVICE}/GetExperiment", request, token=token)
    assert isinstance(answer, bytes)
    plan = pb.GetExperimentResponse.FromString(answer).plan_json
    assert (JUDGE_KEY in plan) is is_whole
    assert '"stages"' in plan
