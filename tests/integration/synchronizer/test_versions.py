"""Weight versions: who may announce them, who needs them, which can be loaded."""

from collections.abc import Callable

import grpc
import pytest

from tests.integration.synchronizer.builders import explorer, finished, publication, weights
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from trinity.api.v1 import synchronizer_pb2 as pb


@pytest.fixture
async def experiment_id(synchronizer: Running) -> str:
    """An experiment whose stage `warmup` runs."""
    return (await synchronizer.created()).experiment.id


async def published(synchronizer: Running, experiment_id: str, version: pb.Version) -> list[int]:
    request = publication(experiment_id, version)
    answer = await synchronizer.stub.PublishVersion(request, timeout=TIMEOUT)
    return list(answer.pinned_versions)


async def refused(
    synchronizer: Running,
    experiment_id: str,
    version: pb.Version,
    code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await published(synchronizer, experiment_id, version)
    assert refusal.value.code() is code
    return refusal.value.details() or ""


async def loadable(synchronizer: Running, experiment_id: str) -> list[pb.Version]:
    request = pb.WatchExperimentRequest(experiment_id=experiment_id)
    watch = synchronizer.stub.WatchExperiment(request, timeout=TIMEOUT)
    async for state in watch:
        watch.cancel()
        return list(state.versions)
    raise AssertionError("the stream ended without a state")


async def beat(synchronizer: Running, member: pb.Member) -> None:
    await synchronizer.stub.Heartbeat(pb.HeartbeatRequest(member=member), timeout=TIMEOUT)


async def test_published_versions_can_be_loaded_until_they_are_retired(
    synchronizer: Running, experiment_id: str
) -> None:
    versions = [weights("warmup", number) for number in (0, 2, 4)]
    for version in versions:
        await published(synchronizer, experiment_id, version)
    assert await loadable(synchronizer, experiment_id) == versions
    retire = pb.RetireVersionsRequest(experiment_id=experiment_id, versions=versions[:2])
    for _ in range(2):
        await synchronizer.stub.RetireVersions(retire, timeout=TIMEOUT)
    assert await loadable(synchronizer, experiment_id) == versions[2:]


async def test_what_a_trainer_offers_is_announced_with_the_version(
    synchronizer: Running, experiment_id: str
) -> None:
    offered = weights("warmup", 2)
    offered.offer.address = "127.0.0.1:4711"
    offered.offer.group = "weights-1f"
    await published(synchronizer, experiment_id, weights("warmup", 0))
    await published(synchronizer, experiment_id, offered)
    before, after = await loadable(synchronizer, experiment_id)
    assert not before.HasField("offer")
    assert after == offered


async def test_retiring_an_unknown_version_changes_nothing(
    synchronizer: Running, experiment_id: str
) -> None:
    await published(synchronizer, experiment_id, weights("warmup", 2))
    unknown = [weights("warmup", 2, incarnation=2), weights("rft", 2)]
    retire = pb.RetireVersionsRequest(experiment_id=experiment_id, versions=unknown)
    await synchronizer.stub.RetireVersions(retire, timeout=TIMEOUT)
    assert len(await loadable(synchronizer, experiment_id)) == 1


async def test_publishing_may_be_retried(synchronizer: Running, experiment_id: str) -> None:
    for number in (2, 4, 2):
        await published(synchronizer, experiment_id, weights("warmup", number))
    numbers = [version.version for version in await loadable(synchronizer, experiment_id)]
    assert numbers == [2, 4]


async def test_a_stale_incarnation_is_told_to_stop(
    synchronizer: Running, experiment_id: str
) -> None:
    await published(synchronizer, experiment_id, weights("warmup", 4, incarnation=1))
    await published(synchronizer, experiment_id, weights("warmup", 2, incarnation=2))
    stale = weights("warmup", 6, incarnation=1)
    reason = await refused(synchronizer, experiment_id, stale, grpc.StatusCode.ABORTED)
    assert reason == (
        "incarnation 2 has published weights of stage warmup; incarnation 1 must stop"
    )
    numbers = [(v.incarnation, v.version) for v in await loadable(synchronizer, experiment_id)]
    assert numbers == [(1, 4), (2, 2)]


async def test_an_incarnation_stays_stale_when_its_successor_retired_everything(
    synchronizer: Running, experiment_id: str
) -> None:
    newer = weights("warmup", 2, incarnation=2)
    await published(synchronizer, experiment_id, newer)
    retire = pb.RetireVersionsRequest(experiment_id=experiment_id, versions=[newer])
    await synchronizer.stub.RetireVersions(retire, timeout=TIMEOUT)
    stale = weights("warmup", 4, incarnation=1)
    await refused(synchronizer, experiment_id, stale, grpc.StatusCode.ABORTED)


async def test_versions_of_an_incarnation_only_grow(
    synchronizer: Running, experiment_id: str
) -> None:
    await published(synchronizer, experiment_id, weights("warmup", 4))
    assert "too late" in await refused(synchronizer, experiment_id, weights("warmup", 3))


async def test_a_version_is_not_published_twice_with_other_content(
    synchronizer: Running, experiment_id: str
) -> None:
    await published(synchronizer, experiment_id, weights("warmup", 4))
    other = weights("warmup", 4, content="other")
    assert "other content" in await refused(synchronizer, experiment_id, other)


async def test_publishing_tells_what_live_members_of_the_stage_use(
    synchronizer: Running, experiment_id: str
) -> None:
    user = explorer(experiment_id, "warmup", version=2)
    user.pinned_versions.extend([0, 1])
    await beat(synchronizer, user)
    await beat(synchronizer, explorer(experiment_id, "warmup", version=1))
    await beat(synchronizer, explorer(experiment_id, "rft", version=7))
    assert await published(synchronizer, experiment_id, weights("warmup", 4)) == [0, 1, 2]


async def test_a_silent_member_pins_nothing(
    synchronizer: Running, experiment_id: str, age_members: Callable[[float], None]
) -> None:
    await beat(synchronizer, explorer(experiment_id, "warmup", version=2))
    age_members(11)
    await beat(synchronizer, explorer(experiment_id, "warmup", version=3))
    assert await published(synchronizer, experiment_id, weights("warmup", 4)) == [3]


async def test_weights_of_an_unknown_stage_are_refused(
    synchronizer: Running, experiment_id: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await published(synchronizer, experiment_id, weights("dpo", 4))
    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


async def report(
    synchronizer: Running, experiment_id: str, version: pb.Version, reason: str = "a bit differs"
) -> None:
    request = pb.ReportDamageRequest(experiment_id=experiment_id, version=version, reason=reason)
    await synchronizer.stub.ReportDamage(request, timeout=TIMEOUT)


def copy_of(version: pb.Version, number: int) -> pb.Version:
    """The same weights under another path."""
    again = pb.Version()
    again.CopyFrom(version)
    again.copy, again.path = number, f"{version.path}-{number}"
    return again


async def test_the_first_report_of_a_copy_stays(synchronizer: Running, experiment_id: str) -> None:
    version = weights("warmup", 2)
    await published(synchronizer, experiment_id, version)
    for reason in ("a bit differs", "another"):
        await report(synchronizer, experiment_id, version, reason)
    await report(synchronizer, experiment_id, weights("warmup", 7), "there is none")
    [found] = await loadable(synchronizer, experiment_id)
    assert found.damage == "a bit differs"
    assert found.path == version.path, "the trainer decides"


async def test_a_later_copy_replaces_a_damaged_one_and_late_calls_change_nothing(
    synchronizer: Running, experiment_id: str
) -> None:
    version = weights("warmup", 2)
    again = copy_of(version, 1)
    await published(synchronizer, experiment_id, version)
    await published(synchronizer, experiment_id, weights("warmup", 4))
    await report(synchronizer, experiment_id, version)
    for late in (again, again, version):
        await published(synchronizer, experiment_id, late)
    await report(synchronizer, experiment_id, version, "of the copy before")
    assert (await loadable(synchronizer, experiment_id))[0] == again


async def test_a_copy_with_another_manifest_is_taken_and_one_of_other_weights_is_not(
    synchronizer: Running, experiment_id: str
) -> None:
    """The hash of a manifest may be what was wrong; that of the weights is the promise."""
    version = weights("warmup", 2)
    await published(synchronizer, experiment_id, version)
    again = copy_of(version, 1)
    again.manifest_sha256 = b"m" * 32
    await published(synchronizer, experiment_id, again)
    assert await loadable(synchronizer, experiment_id) == [again]
    other = copy_of(version, 2)
    other.weights_sha256 = b"w" * 32
    assert "other content" in await refused(synchronizer, experiment_id, other)


async def test_weights_are_known_by_either_root(synchronizer: Running, experiment_id: str) -> None:
    version = weights("warmup", 2)
    version.weights_sha256, version.weights_blake3 = b"", b"b" * 32
    await published(synchronizer, experiment_id, version)
    assert await loadable(synchronizer, experiment_id) == [version]
    other = copy_of(version, 1)
    other.weights_blake3 = b"c" * 32
    assert "other content" in await refused(synchronizer, experiment_id, other)


async def test_a_stale_trainer_replaces_nothing(synchronizer: Running, experiment_id: str) -> None:
    version = weights("warmup", 2)
    await published(synchronizer, experiment_id, version)
    await published(synchronizer, experiment_id, weights("warmup", 2, incarnation=2))
    again = copy_of(version, 1)
    await refused(synchronizer, experiment_id, again, grpc.StatusCode.ABORTED)


async def test_lost_versions_are_told_until_they_are_published_again(
    synchronizer: Running, experiment_id: str
) -> None:
    kept, lost, old = (weights("warmup", number) for number in (4, 2, 0))
    for version in (old, lost, kept):
        await published(synchronizer, experiment_id, version)
    await report(synchronizer, experiment_id, old)
    for versions, damage in ([lost], "a bit differs"), ([old], ""):
        request = pb.RetireVersionsRequest(
            experiment_id=experiment_id, versions=versions, damage=damage
        )
        await synchronizer.stub.RetireVersions(request, timeout=TIMEOUT)
    watch = synchronizer.stub.WatchExperiment(
        pb.WatchExperimentRequest(experiment_id=experiment_id), timeout=TIMEOUT
    )
    async for state in watch:
        watch.cancel()
        assert [version.version for version in state.versions] == [4]
        [found] = state.lost_versions
        assert (found.version, found.damage) == (2, "a bit differs")
        break


async def test_a_trainer_that_has_finished_is_asked_again_while_the_stage_runs(
    synchronizer: Running, experiment_id: str
) -> None:
    """Once for each copy: what is reported twice is no news."""
    stub = synchronizer.stub
    warmup, final = weights("warmup", 2), weights("rft", 2)
    finish = finished(experiment_id, "warmup", pb.ROLE_TRAINER, warmup)
    await stub.FinishRole(finish, timeout=TIMEOUT)
    await report(synchronizer, experiment_id, warmup)
    for _ in range(2):
        await published(synchronizer, experiment_id, final)
        await stub.FinishRole(
            finished(experiment_id, "rft", pb.ROLE_TRAINER, final), timeout=TIMEOUT
        )
    assert await finished_roles(synchronizer, experiment_id) == [[pb.ROLE_TRAINER]] * 2
    await report(synchronizer, experiment_id, final)
    assert await finished_roles(synchronizer, experiment_id) == [[pb.ROLE_TRAINER], []]
    later = weights("rft", 2, incarnation=2)
    await published(synchronizer, experiment_id, later)
    await stub.FinishRole(finished(experiment_id, "rft", pb.ROLE_TRAINER, later), timeout=TIMEOUT)
    await report(synchronizer, experiment_id, final)
    state = await stub.GetExperiment(
        pb.GetExperimentRequest(experiment_id=experiment_id), timeout=TIMEOUT
    )
    assert state.experiment.stages[1].final_version.incarnation == 2
    assert await finished_roles(synchronizer, experiment_id) == [[pb.ROLE_TRAINER]] * 2


async def finished_roles(synchronizer: Running, experiment_id: str) -> list[list[int]]:
    request = pb.GetExperimentRequest(experiment_id=experiment_id)
    answer = await synchronizer.stub.GetExperiment(request, timeout=TIMEOUT)
    return [list(stage.finished_roles) for stage in answer.experiment.stages]
