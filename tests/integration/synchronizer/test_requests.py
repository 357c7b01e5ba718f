"""Malformed requests are refused with the name of the field, and nothing else happens."""

import uuid
from typing import Any

import grpc
import pytest

from tests.integration.synchronizer.builders import (
    creation,
    explorer,
    failure,
    finished,
    plan,
    publication,
    weights,
)
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from trinity.api.v1 import synchronizer_pb2 as pb

SOME_ID = str(uuid.uuid4())


def version(**changes: object) -> pb.PublishVersionRequest:
    request = publication(SOME_ID, weights("rft", 1))
    for name, value in changes.items():
        setattr(request.version, name, value)
    return request


def heartbeat(**changes: object) -> pb.HeartbeatRequest:
    member = explorer()
    for name, value in changes.items():
        setattr(member, name, value)
    return pb.HeartbeatRequest(member=member)


MALFORMED = [
    ("CreateExperiment", creation(tenant=""), "tenant"),
    ("CreateExperiment", creation(label=""), "label"),
    ("CreateExperiment", creation(label="a\0b"), "label"),
    ("CreateExperiment", creation(label="a" * 501), "label"),
    ("CreateExperiment", creation(label="\u00e9" * 251), "label"),
    ("CreateExperiment", creation("no json"), "plan_json"),
    ("CreateExperiment", creation("{}"), "plan_json: stages"),
    ("CreateExperiment", creation(plan()), "plan_json: stages"),
    ("CreateExperiment", creation(plan(rft=())), "plan_json: stages.0.roles"),
    ("CreateExperiment", creation(plan(rft=("buffer",))), "plan_json: stages.0.roles"),
    ("CreateExperiment", creation('{"stages": [{"roles": ["trainer"]}]}'), "stages.0.name"),
    (
        "CreateExperiment",
        creation('{"stages": [{"name": "a\\u0000", "roles": ["trainer"]}]}'),
        "plan_json: a stage's name",
    ),
    (
        "CreateExperiment",
        creation('{"stages": [%s, %s]}' % (('{"name": "a", "roles": ["trainer"]}',) * 2)),
        "two stages",
    ),
    ("GetExperiment", pb.GetExperimentRequest(experiment_id="1"), "experiment_id"),
    ("GetExperiment", pb.GetExperimentRequest(), "experiment_id"),
    ("CancelExperiment", pb.CancelExperimentRequest(experiment_id="x"), "experiment_id"),
    ("GetStatus", pb.GetStatusRequest(experiment_id="x"), "experiment_id"),
    ("RetireVersions", pb.RetireVersionsRequest(experiment_id="x"), "experiment_id"),
    ("ReportDamage", pb.ReportDamageRequest(experiment_id="x"), "experiment_id"),
    ("ReportDamage", pb.ReportDamageRequest(experiment_id=SOME_ID, reason="a"), "version.stage"),
    (
        "RetireVersions",
        pb.RetireVersionsRequest(experiment_id=SOME_ID, versions=[pb.Version()]),
        "versions.stage",
    ),
    ("PublishVersion", publication("x", weights("rft", 1)), "experiment_id"),
    ("PublishVersion", pb.PublishVersionRequest(experiment_id=SOME_ID), "version.stage"),
    ("PublishVersion", version(version=-1), "version.version"),
    ("PublishVersion", version(incarnation=-1), "version.incarnation"),
    ("PublishVersion", version(kind=0), "version.kind"),
    ("PublishVersion", version(kind=99), "version.kind"),
    ("PublishVersion", version(path=""), "version.path"),
    ("PublishVersion", version(path="a\0b"), "version.path"),
    ("PublishVersion", version(manifest_sha256=b"short"), "version.manifest_sha256"),
    ("PublishVersion", version(weights_sha256=b""), "version.weights_sha256"),
    ("PublishVersion", version(parent_version=-2), "version.parent_version"),
    ("FinishRole", finished("x", "rft", pb.ROLE_EXPLORER), "experiment_id"),
    ("FinishRole", finished(SOME_ID, "", pb.ROLE_EXPLORER), "stage"),
    ("FinishRole", finished(SOME_ID, "rft", pb.ROLE_UNSPECIFIED), "role"),
    ("FailStage", failure("x", "rft", "why"), "experiment_id"),
    ("FailStage", failure(SOME_ID, "", "why"), "stage"),
    ("FailStage", failure(SOME_ID, "rft", ""), "reason"),
    ("RecordTurn", pb.RecordTurnRequest(experiment_id="x"), "experiment_id"),
    ("RecordTurn", pb.RecordTurnRequest(experiment_id=SOME_ID), "role"),
    (
        "RecordTurn",
        pb.RecordTurnRequest(experiment_id=SOME_ID, role=pb.ROLE_TRAINER),
        "state",
    ),
    ("Heartbeat", pb.HeartbeatRequest(), "member.id"),
    ("Heartbeat", heartbeat(role=0), "member.role"),
    ("Heartbeat", heartbeat(experiment_id="x"), "member.experiment_id"),
    ("Heartbeat", heartbeat(address="a\0b"), "member.address"),
]
UNKNOWN = [
    ("GetExperiment", pb.GetExperimentRequest(experiment_id=SOME_ID)),
    ("CancelExperiment", pb.CancelExperimentRequest(experiment_id=SOME_ID)),
    ("GetStatus", pb.GetStatusRequest(experiment_id=SOME_ID)),
    ("PublishVersion", version()),
    ("RetireVersions", pb.RetireVersionsRequest(experiment_id=SOME_ID)),
    (
        "ReportDamage",
        pb.ReportDamageRequest(
            experiment_id=SOME_ID, version=pb.Version(stage="warmup"), reason="a"
        ),
    ),
    (
        "RecordTurn",
        pb.RecordTurnRequest(
            experiment_id=SOME_ID,
            role=pb.ROLE_TRAINER,
            state=pb.RecordTurnRequest.STATE_WANTED,
            sequence=1,
        ),
    ),
    ("FinishRole", finished(SOME_ID, "rft", pb.ROLE_EXPLORER)),
    ("FailStage", failure(SOME_ID, "rft", "why")),
]


async def refusal_of(synchronizer: Running, call: str, request: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await getattr(synchronizer.stub, call)(request, timeout=TIMEOUT)
    return refusal.value


async def test_malformed_requests_are_refused_by_the_fields_name(synchronizer: Running) -> None:
    for call, request, field in MALFORMED:
        refusal = await refusal_of(synchronizer, call, request)
        assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT, (call, request, refusal)
        assert field in (refusal.details() or ""), (call, request, refusal)
    status = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
    assert not status.experiments
    assert not status.members


async def test_an_unknown_experiment_is_not_found(synchronizer: Running) -> None:
    for call, request in UNKNOWN:
        refusal = await refusal_of(synchronizer, call, request)
        assert refusal.code() is grpc.StatusCode.NOT_FOUND, (call, request, refusal)
        assert SOME_ID in (refusal.details() or "")


async def test_durations_that_are_no_numbers_are_refused(synchronizer: Running) -> None:
    member = explorer()
    member.waits.add(owner="explorer", waits_for="buffer", waited_seconds=float("nan"))
    refusal = await refusal_of(synchronizer, "Heartbeat", pb.HeartbeatRequest(member=member))
    assert refusal.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "waited_seconds" in (refusal.details() or "")


async def test_a_reason_of_any_length_and_content_is_kept(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    request = failure(experiment_id, "warmup", "bad \0 bytes " + "x" * 100_000)
    await synchronizer.stub.FailStage(request, timeout=TIMEOUT)
    reason = (await synchronizer.experiment(experiment_id)).reason
    assert reason.startswith("bad  bytes xxx")
