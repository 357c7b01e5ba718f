"""Experiments whose names the malformed requests use, so that they get past the first checks."""

import json
import uuid

from tests.integration.hostile.messages import Known
from tests.integration.hostile.values import CURSORS
from tests.support.model_free.experiment import start_experiment
from trinity.api.v1 import buffer_pb2, experience_pb2
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.local.addresses import ServiceAddresses
from trinity.runtime.rpc.channel import open_channel

CALL_SECONDS = 30.0
STAGE = "rft"


async def known_values(at: ServiceAddresses, plan: ExperimentPlan) -> Known:
    """What a client would fill in: of an experiment at the synchronizer, and one at the buffer.

    They are two, so that only the malformed requests change the second.
    """
    ids = ((await start_experiment(at.synchronizer, plan)).id, str(uuid.uuid4()))
    assignments = [one.id for one in await leased(at, plan, ids[1])]
    some_id = str(uuid.UUID(int=7))
    return {
        "tenant": (plan.tenant,),
        "experiment_id": ids,
        "stage": (STAGE,),
        "name": (STAGE, "train", "uploaded"),
        "label": ("fuzz/one", "fuzz/two"),
        "plan_json": (
            plan.stages[0].model_dump_json(),
            plan.model_dump_json(),
            json.dumps({"stages": [{"name": STAGE, "roles": ["trainer", "explorer"]}]}),
        ),
        "json": ('{"prompt": "1+1=", "response": "2"}', "[1]", "{"),
        "cursor": ("", *CURSORS),
        "states": (1, 2, 3),
        "experience_id": (some_id,),
        "experience_ids": (some_id,),
        "explorer_id": (some_id,),
        "trainer_id": (some_id,),
        "producer": (some_id,),
        "request_id": (some_id,),
        "id": (some_id, *assignments),
        "assignment_id": (some_id, *assignments),
        "lease_token": (some_id,),
        "incarnation": (1, 2, 3),
        "version": (0, 1, 2),
        "step": (1, 2, 3),
        "parent_version": (-1, 0, 1),
        "base_version": (0,),
        "sequence": (1, 2, 3),
        "wait_seconds": (0.0, 0.01),
        "lease_seconds": (1.0, 60.0),
        "max_assignments": (1, 8),
        "role": (1, 2, 3),
        "kind": (1, 2, 3),
        "state": (experience_pb2.RunResult.STATE_COMPLETE,),
        "path": ("/nowhere/weights",),
        "sha256": (b"\x01" * 32,),
        "manifest_sha256": (b"\x01" * 32,),
        "weights_sha256": (b"\x02" * 32,),
        "reason": ("because",),
        "activity": ("rolling out",),
    }


LEASE_SECONDS = 24 * 3600.0
"""Longer than any attack: what is sent at its end is still for work that is held."""


async def leased(
    at: ServiceAddresses, plan: ExperimentPlan, experiment_id: str
) -> list[buffer_pb2.Assignment]:
    """Open a stage at the buffer alone and lease some of its work."""
    key = buffer_pb2.StageKey(tenant=plan.tenant, experiment_id=experiment_id, stage=STAGE)
    stage_json = plan.stages[0].model_dump_json()
    async with open_channel(at.buffer) as channel:
        stub = BufferServiceStub(channel)
        opening = buffer_pb2.OpenStageRequest(key=key, plan_json=stage_json, seed=7)
        opened = buffer_pb2.OpenStageResponse()
        while opened.state != buffer_pb2.OpenStageResponse.STATE_OPEN:
            opened = await stub.OpenStage(opening, timeout=CALL_SECONDS)
        beginning = buffer_pb2.BeginIncarnationRequest(key=key, trainer_id=str(uuid.uuid4()))
        begun = await stub.BeginIncarnation(beginning, timeout=CALL_SECONDS)
        version = buffer_pb2.PublishedVersion(
            incarnation=begun.incarnation, weights_sha256=b"\x02" * 32
        )
        recorded = buffer_pb2.RecordVersionRequest(key=key, version=version)
        await stub.RecordVersion(recorded, timeout=CALL_SECONDS)
        asked = buffer_pb2.LeaseAssignmentsRequest(
            key=key, explorer_id=str(uuid.uuid4()), max_assignments=2, lease_seconds=LEASE_SECONDS
        )
        granted = await stub.LeaseAssignments(asked, timeout=CALL_SECONDS)
    return list(granted.assignments)


async def cancel_all(at: ServiceAddresses) -> int:
    """End every experiment that runs, also those that the requests have made; answers how many."""
    async with open_channel(at.synchronizer) as channel:
        stub = SynchronizerServiceStub(channel)
        watching = stub.WatchExperiments(pb.WatchExperimentsRequest(), timeout=CALL_SECONDS)
        running = list((await watching.read()).experiments)
        watching.cancel()
        for one in running:
            cancelling = pb.CancelExperimentRequest(experiment_id=one.id, reason="the end")
            await stub.CancelExperiment(cancelling, timeout=CALL_SECONDS)
    return len(running)
