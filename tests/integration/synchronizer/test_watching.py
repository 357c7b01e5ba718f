"""Watch streams over real sockets."""

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2

from services.synchronizer import servicer
from tests.integration.synchronizer.builders import (
    creation,
    failure,
    finished,
    publication,
    weights,
)
from tests.integration.synchronizer.conftest import (
    TIMEOUT,
    Running,
    running_synchronizer,
)
from tests.support.infra_fixtures import RestartablePostgres
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.security.authorization import LOCAL_CALLER, Scope


def watch(synchronizer: Running, experiment_id: str) -> AsyncIterator[pb.WatchExperimentResponse]:
    request = pb.WatchExperimentRequest(experiment_id=experiment_id)
    stream: AsyncIterator[pb.WatchExperimentResponse] = synchronizer.stub.WatchExperiment(
        request, timeout=TIMEOUT
    ).__aiter__()
    return stream


async def test_a_watcher_sees_the_state_now_and_each_change(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    states = watch(synchronizer, experiment_id)
    state = await anext(states)
    assert state.experiment.state == pb.EXPERIMENT_STATE_RUNNING
    assert not state.versions
    await synchronizer.stub.PublishVersion(
        publication(experiment_id, weights("warmup", 2)), timeout=TIMEOUT
    )
    assert [version.version for version in (await anext(states)).versions] == [2]
    await synchronizer.stub.FailStage(failure(experiment_id, "warmup", "why"), timeout=TIMEOUT)
    assert (await anext(states)).experiment.reason == "why"


async def test_a_watcher_sees_the_versions_of_the_running_stage_only(
    synchronizer: Running,
) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    done = finished(experiment_id, "warmup", pb.ROLE_TRAINER, weights("warmup", 5))
    await synchronizer.stub.FinishRole(done, timeout=TIMEOUT)
    start = weights("rft", 0)
    await synchronizer.stub.PublishVersion(publication(experiment_id, start), timeout=TIMEOUT)
    assert list((await anext(watch(synchronizer, experiment_id))).versions) == [start]


async def test_watchers_of_one_replica_see_changes_made_through_another(
    synchronizer: Running, replica: Running
) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    states = watch(replica, experiment_id)
    await anext(states)
    for number in (1, 2):
        version = publication(experiment_id, weights("warmup", number))
        await synchronizer.stub.PublishVersion(version, timeout=TIMEOUT)
        assert (await anext(states)).versions[-1].version == number


async def test_watching_all_lists_running_experiments_oldest_first(synchronizer: Running) -> None:
    request = pb.WatchExperimentsRequest(tenant="ours")
    stream = synchronizer.stub.WatchExperiments(request, timeout=TIMEOUT).__aiter__()
    assert not (await anext(stream)).experiments
    first = (await synchronizer.created(creation(label="a", tenant="ours"))).experiment
    assert list((await anext(stream)).experiments) == [first]
    await synchronizer.created(creation(label="b", tenant="theirs"))
    second = (await synchronizer.created(creation(label="b", tenant="ours"))).experiment
    assert list((await anext(stream)).experiments) == [first, second]
    await synchronizer.stub.FailStage(failure(first.id, "warmup", "why"), timeout=TIMEOUT)
    assert list((await anext(stream)).experiments) == [second]


async def test_watching_an_unknown_experiment_is_refused(synchronizer: Running) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await anext(watch(synchronizer, str(uuid.uuid4())))
    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


async def test_streams_end_with_unavailable_when_the_service_stops(
    synchronizer_dsn: str,
) -> None:
    async with running_synchronizer(synchronizer_dsn) as synchronizer:
        experiment_id = (await synchronizer.created()).experiment.id
        states = watch(synchronizer, experiment_id)
        await anext(states)
        synchronizer.stop.set()
        with pytest.raises(grpc.aio.AioRpcError) as end:
            await anext(states)
        assert end.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_survives_a_restart_of_the_database(
    restartable_postgres: RestartablePostgres,
) -> None:
    dsn = restartable_postgres.server.dsn("synchronizer")
    async with running_synchronizer(dsn) as synchronizer:
        experiment_id = (await synchronizer.created()).experiment.id
        states = watch(synchronizer, experiment_id)
        await anext(states)
        restartable_postgres.stop()
        await synchronizer.wait_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        request = publication(experiment_id, weights("warmup", 1))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await synchronizer.stub.PublishVersion(request, timeout=TIMEOUT)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        await restartable_postgres.start()
        await synchronizer.wait_health(health_pb2.HealthCheckResponse.SERVING)
        await synchronizer.stub.PublishVersion(request, timeout=TIMEOUT)
        assert [version.version for version in (await anext(states)).versions] == [1]


@pytest.mark.parametrize(
    ("scope", "is_told"), [(Scope.EXPLORER, True), (Scope.TRAINER, True), (Scope.READ, False)]
)
async def test_where_weights_are_given_from_memory_is_told_to_who_takes_them(
    synchronizer: Running, monkeypatch: pytest.MonkeyPatch, scope: Scope, is_told: bool
) -> None:
    """Its one-time name is all that a transfer asks for."""
    experiment_id = (await synchronizer.created()).experiment.id
    offered = weights("warmup", 2)
    offered.offer.CopyFrom(pb.TransferOffer(address="127.0.0.1:4000", group="weights-1f"))
    await synchronizer.stub.PublishVersion(publication(experiment_id, offered), timeout=TIMEOUT)
    caller = replace(LOCAL_CALLER, scopes=frozenset({scope}))
    monkeypatch.setattr(servicer, "current_caller", lambda: caller)
    (version,) = (await anext(watch(synchronizer, experiment_id))).versions
    assert version.version == 2
    assert version.HasField("offer") is is_told
