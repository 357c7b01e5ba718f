"""Requests as a well-behaved client makes them."""

import hashlib
import json
import uuid

from trinity.api.v1 import synchronizer_pb2 as pb

BOTH = ("trainer", "explorer")
TRAIN = ("trainer",)


def plan(**roles_of_stages: tuple[str, ...]) -> str:
    """A plan with fields that the synchronizer does not know."""
    stages = [
        {"index": index, "name": name, "mode": "both", "roles": roles, "config": {"model": {}}}
        for index, (name, roles) in enumerate(roles_of_stages.items())
    ]
    return json.dumps({"tenant": "default", "seed": 7, "stages": stages})


TWO_STAGES = plan(warmup=TRAIN, rft=BOTH)


def creation(
    plan_json: str = TWO_STAGES, label: str = "project/run", tenant: str = "default"
) -> pb.CreateExperimentRequest:
    return pb.CreateExperimentRequest(tenant=tenant, label=label, plan_json=plan_json)


def weights(stage: str, number: int, incarnation: int = 1, content: str = "") -> pb.Version:
    path = f"/job/stages/{stage}/weights/v{number}-{incarnation}"
    return pb.Version(
        stage=stage,
        version=number,
        incarnation=incarnation,
        kind=pb.Version.KIND_FULL,
        path=path,
        manifest_sha256=hashlib.sha256(f"manifest {path} {content}".encode()).digest(),
        weights_sha256=hashlib.sha256(f"weights {path} {content}".encode()).digest(),
        parent_version=number - 1,
    )


def publication(experiment_id: str, version: pb.Version) -> pb.PublishVersionRequest:
    return pb.PublishVersionRequest(experiment_id=experiment_id, version=version)


def finished(
    experiment_id: str, stage: str, role: pb.Role, final_version: pb.Version | None = None
) -> pb.FinishRoleRequest:
    return pb.FinishRoleRequest(
        experiment_id=experiment_id, stage=stage, role=role, final_version=final_version
    )


def failure(experiment_id: str, stage: str, reason: str) -> pb.FailStageRequest:
    return pb.FailStageRequest(
        experiment_id=experiment_id, stage=stage, role=pb.ROLE_TRAINER, reason=reason
    )


def explorer(experiment_id: str = "", stage: str = "", version: int = 0) -> pb.Member:
    return pb.Member(
        id=str(uuid.uuid4()),
        role=pb.ROLE_EXPLORER,
        address="127.0.0.1:5000",
        experiment_id=experiment_id,
        stage=stage,
        activity="rolling out",
        phase=pb.MEMBER_PHASE_WORKING,
        version=version,
    )
