"""Who may call the four running services, and what those hear who may not."""

import uuid
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from tests.integration.security.secured import Refusal, Secured, answer_of, bearer
from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.client.async_tasksets import AsyncTasksets
from trinity.errors import Forbidden, Unauthenticated
from trinity.run.diagnosis.gather import gather
from trinity.run.diagnosis.snapshot import ProbeState
from trinity.run.local.addresses import SERVICES
from trinity.run.local.run_file import read_running
from trinity.run.stored import open_stored_experiment
from trinity.runtime.security.authorization import (
    REFLECTION_SERVICES,
    SCOPES_OF_METHODS,
    WHOLE_PROCESS_METHODS,
    Scope,
)
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import AUTHORITY, TOKEN, Credentials

pytestmark = pytest.mark.asyncio(loop_scope="package")

CODES = grpc.StatusCode
API = "trinity.api.v1"
ONE_OF_EACH = {
    "synchronizer": f"{API}.SynchronizerService/GetStatus",
    "buffer": f"{API}.BufferService/GetBufferStatus",
    "explorer": f"{API}.ExplorerService/GetExplorerStatus",
    "trainer": f"{API}.TrainerService/GetTrainerStatus",
}
NAMES_NO_TENANT = {
    f"{API}.BufferService/WatchCommits",
    f"{API}.SynchronizerService/GetStatus",
    f"{API}.SynchronizerService/Heartbeat",
}
"""Asked without any experiment these are a tenant's own affair, and answered."""
BY_EXPERIMENT = sorted(
    method
    for method in SCOPES_OF_METHODS
    if "SynchronizerService" in method
    and method.rpartition("/")[2] not in ("CreateExperiment", "WatchExperiments", "Heartbeat")
)


def code_of(answer: Refusal | bytes) -> grpc.StatusCode:
    return answer.code if isinstance(answer, Refusal) else CODES.OK


async def test_an_experiment_runs_to_its_end_with_everything_on(secured: Secured) -> None:
    assert secured.ended.state == pb.EXPERIMENT_STATE_FINISHED, secured.ended.reason
    for service in SERVICES:
        assert "refused: " not in secured.log_of(service), service


@pytest.mark.parametrize("service", SERVICES)
async def test_who_has_the_right_token_is_answered(secured: Secured, service: str) -> None:
    token = secured.token(tenant="*")
    assert code_of(await secured.call(ONE_OF_EACH[service], token=token)) is CODES.OK


@pytest.mark.parametrize("service", SERVICES)
async def test_without_a_trusted_certificate_there_is_no_connection(
    secured: Secured, service: str, tmp_path: Path
) -> None:
    method, token = ONE_OF_EACH[service], secured.token(tenant="*")
    stranger = secured.strangers_certificate(tmp_path)
    nameless = {AUTHORITY: secured.certificate()[AUTHORITY]}
    for files in (stranger, nameless):
        assert code_of(await secured.call(method, token=token, files=files)) is CODES.UNAVAILABLE
    options = [("grpc.enable_retries", 0)]
    async with grpc.aio.insecure_channel(secured.address_of(method), options=options) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as plain:
            await channel.unary_unary(f"/{method}")(b"", timeout=10)
    assert plain.value.code() is CODES.UNAVAILABLE


async def test_a_client_does_not_trust_a_server_of_another_authority(
    secured: Secured, tmp_path: Path
) -> None:
    issued = CredentialIssuer(tmp_path)
    files = secured.certificate()
    files[AUTHORITY] = issued.signing_key.with_name(AUTHORITY).read_bytes()
    answer = await secured.call(ONE_OF_EACH["buffer"], token=secured.token(), files=files)
    assert code_of(answer) is CODES.UNAVAILABLE


@pytest.mark.parametrize("service", SERVICES)
async def test_health_needs_a_certificate_and_no_token(secured: Secured, service: str) -> None:
    address = secured.address_of(ONE_OF_EACH[service])
    async with secured.channel(address, secured.certificate()) as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await call(b"", timeout=10)


@pytest.mark.parametrize("service", REFLECTION_SERVICES)
async def test_contracts_are_told_to_whoever_may_read(secured: Secured, service: str) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    trainers = secured.token(scopes={Scope.TRAINER})
    address = secured.address_of(ONE_OF_EACH["buffer"])
    async with secured.channel(address, secured.certificate()) as channel:
        for token, code in (
            (secured.token(scopes={Scope.READ}), CODES.OK),
            (trainers, CODES.PERMISSION_DENIED),
            (None, CODES.UNAUTHENTICATED),
        ):
            method = f"{service}/ServerReflectionInfo"
            answer = await answer_of(channel, method, asked, bearer(token))
            assert code_of(answer) is code


@pytest.mark.parametrize("method", sorted(SCOPES_OF_METHODS))
async def test_no_call_is_answered_without_a_good_token_and_its_scope(
    secured: Secured, method: str, tmp_path: Path
) -> None:
    """The requests are malformed too: whoever may not call does not even hear that."""
    garbage = b"\xff\xff\xff"
    tokens = {
        "no token": None,
        "malformed": "let me in",
        "not signed": secured.token(issuer=CredentialIssuer(tmp_path)),
        "expired": secured.token(lifetime=timedelta(seconds=-1)),
    }
    for word, token in tokens.items():
        answer = await secured.call(method, garbage, token=token)
        assert isinstance(answer, Refusal) and answer.code is CODES.UNAUTHENTICATED, (word, answer)
        assert word in answer.details
    others = secured.token(tenant="*", scopes=set(Scope) - SCOPES_OF_METHODS[method])
    answer = await secured.call(method, garbage, token=others)
    assert isinstance(answer, Refusal) and answer.code is CODES.PERMISSION_DENIED, answer


@pytest.mark.parametrize("method", sorted(set(SCOPES_OF_METHODS) - NAMES_NO_TENANT))
async def test_a_request_that_names_no_tenant_is_refused_to_a_token_for_one(
    secured: Secured, method: str
) -> None:
    answer = await secured.call(method, b"", token=secured.token())
    if method in WHOLE_PROCESS_METHODS or method not in BY_EXPERIMENT:
        assert code_of(answer) is CODES.PERMISSION_DENIED, answer
    else:
        assert code_of(answer) is CODES.INVALID_ARGUMENT, answer


@pytest.mark.parametrize("method", BY_EXPERIMENT)
async def test_anothers_experiment_and_one_that_is_not_there_look_the_same(
    secured: Secured, method: str
) -> None:
    stranger = secured.token(tenant="stranger")
    answers = [
        await secured.call(
            method,
            pb.GetExperimentRequest(experiment_id=experiment).SerializeToString(),
            token=stranger,
        )
        for experiment in (secured.ended.id, str(uuid.uuid4()), "no uuid")
    ]
    assert isinstance(answers[0], Refusal) and answers[0].code is CODES.PERMISSION_DENIED
    assert answers == [answers[0]] * 3
    assert secured.ended.id not in answers[0].details


async def test_anothers_data_and_none_look_the_same_in_the_buffer(secured: Secured) -> None:
    stranger = secured.token(tenant="stranger")
    for tenant in ("default", "nobody"):
        key = buffer_pb2.StageKey(tenant=tenant, experiment_id=secured.ended.id, stage="rft")
        request = query_pb2.GetPopulationRequest(key=key).SerializeToString()
        answer = await secured.call(f"{API}.QueryService/GetPopulation", request, token=stranger)
        assert answer == Refusal(
            code=CODES.PERMISSION_DENIED, details="the token is for another tenant"
        )


async def test_ones_own_data_is_answered(secured: Secured) -> None:
    own = secured.token()
    key = buffer_pb2.StageKey(tenant="default", experiment_id=secured.ended.id, stage="rft")
    request = query_pb2.GetPopulationRequest(key=key).SerializeToString()
    assert code_of(await secured.call(f"{API}.QueryService/GetPopulation", request, token=own)) is (
        CODES.OK
    )
    wanted = pb.GetExperimentRequest(experiment_id=secured.ended.id).SerializeToString()
    answer = await secured.call(f"{API}.SynchronizerService/GetExperiment", wanted, token=own)
    assert isinstance(answer, bytes)
    assert pb.GetExperimentResponse.FromString(answer).experiment.id == secured.ended.id


async def test_the_status_shows_each_tenant_its_own(secured: Secured) -> None:
    for tenant, expected in (("default", [secured.ended.id]), ("stranger", [])):
        token = secured.token(tenant=tenant)
        answer = await secured.call(ONE_OF_EACH["synchronizer"], token=token)
        assert isinstance(answer, bytes)
        status = pb.GetStatusResponse.FromString(answer)
        assert [one.id for one in status.experiments] == expected
        own = {secured.ended.id, ""} if expected else set()  # its idle ones too
        assert {one.experiment_id for one in status.members} <= own


async def test_a_stream_may_not_change_its_tenant_on_the_way(secured: Secured) -> None:
    first = buffer_pb2.UploadBlobRequest(tenant="default", sha256=b"\0" * 32)
    second = buffer_pb2.UploadBlobRequest(tenant="stranger", chunk=b"x")
    files = secured.certificate()
    method = f"{API}.BufferService/UploadBlob"
    metadata = (("authorization", f"Bearer {secured.token()}"),)
    async with secured.channel(secured.address_of(method), files) as channel:
        call = channel.stream_unary(f"/{method}")(metadata=metadata, timeout=10)
        for message in (first, second):
            await call.write(message.SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call
    assert refusal.value.code() is CODES.PERMISSION_DENIED


async def test_each_refusal_and_each_steering_leaves_a_line_without_the_token(
    secured: Secured,
) -> None:
    token = secured.token()
    key = buffer_pb2.StageKey(tenant="stranger", experiment_id=secured.ended.id, stage="rft")
    method = f"{API}.QueryService/ExcludeExperiences"
    request = query_pb2.ExcludeExperiencesRequest(key=key, reason="a test", dry_run=True)
    await secured.call(method, request.SerializeToString(), token=token)
    assert "WARNING audit" in await secured.logged("buffer", "refused: ")
    for why in ("the token has expired", "scope", "tenant", "no token"):
        assert "audit" in await secured.logged("buffer", f"refused: {why}")
    request.key.tenant = "default"
    request.filter.SetInParent()
    await secured.call(method, request.SerializeToString(), token=token)
    line = await secured.logged("buffer", "steered", "ExcludeExperiences")
    for part in ("subject=tester", "tenant=default", secured.ended.id, "reason=a test"):
        assert part in line
    assert token not in secured.log_of("buffer")


async def test_a_person_on_the_machine_looks_at_it_without_being_told_how(secured: Secured) -> None:
    running = read_running(secured.job_dir)
    assert running is not None and running.addresses.security_dir
    snapshot = await gather(running, secured.job_dir)
    assert {part.name: part.reply for part in snapshot.parts} == dict.fromkeys(
        ("postgres", "nats", *SERVICES), ProbeState.ANSWERS
    )
    async with open_stored_experiment(secured.job_dir) as stored:
        assert [stage.key.experiment_id for stage in stored.stages] == [secured.ended.id]


async def test_tasks_come_in_and_go_with_the_tokens_tenant(
    secured: Secured, tmp_path: Path
) -> None:
    issuer = CredentialIssuer(secured.security_root)
    part = CredentialRole(name="person", tenant="a", scopes=(Scope.SUBMIT, Scope.READ))
    person = Credentials(issuer.issue(part, timedelta(hours=1)))
    async with AsyncTasksets(secured.stack.addresses.buffer, tenant="a", security=person) as own:
        assert (await own.submit("sums", [{"prompt": "1+1="}])).num_stored == 1
        assert [one.name for one in await own.list()] == ["sums"]
        with pytest.raises(Forbidden):
            await own.delete("sums")
    other = AsyncTasksets(secured.stack.addresses.buffer, tenant="default", security=person)
    async with other:
        with pytest.raises(Forbidden, match="another tenant"):
            await other.submit("sums", [{"prompt": "1+1="}])
        (tmp_path / "expired").write_text(secured.token(lifetime=timedelta(seconds=-1)))
        (tmp_path / "expired").replace(secured.security_root / "person" / TOKEN)
        with pytest.raises(Unauthenticated, match="expired"):
            await other.submit("sums", [{"prompt": "1+1="}])
