"""Malformed requests to every call: the right code, and no harm.

Many more of them: python -m tests.integration.hostile.fuzz --requests 100000
"""

import grpc
import pytest

from tests.integration.hostile.arena import Arena
from tests.integration.hostile.fuzz import attack, report
from tests.integration.hostile.vitals import SERVICES
from tests.support.model_free.experiment import wait_until_ended
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.rpc.channel import open_channel

pytestmark = pytest.mark.asyncio(loop_scope="package")

NUM_REQUESTS = 2_500
GROWTH_MEBIBYTES = 48
NUM_LIMITED_LINES = 60


async def test_an_experiment_whose_plan_nobody_can_read_fails_and_no_service_does(
    arena: Arena,
) -> None:
    plan_json = '{"stages": [{"name": "rft", "roles": ["trainer", "explorer"]}]}'
    request = pb.CreateExperimentRequest(tenant="t", label="unreadable", plan_json=plan_json)
    pids = {name: now.pid for name, now in arena.vitals.items()}
    async with open_channel(arena.at.synchronizer) as channel:
        created = await SynchronizerServiceStub(channel).CreateExperiment(request)
        ended = await wait_until_ended(arena.at.synchronizer, created.experiment.id)
    assert ended.state == pb.EXPERIMENT_STATE_FAILED
    assert "plan" in ended.reason and "cannot be read" in ended.reason
    assert {name: now.pid for name, now in arena.vitals.items()} == pids


async def test_malformed_requests_end_with_the_right_code_and_do_no_harm(arena: Arena) -> None:
    async with arena.unharmed("requests") as valid:
        findings = await attack(arena, num_requests=NUM_REQUESTS, seed=1)
    assert not findings.wrong, report(findings)
    assert findings.num_requests == NUM_REQUESTS
    assert findings.codes["buffer", grpc.StatusCode.INVALID_ARGUMENT] > NUM_REQUESTS / 10
    assert valid.seconds, "no valid call was made meanwhile"
    for name in SERVICES:
        warm, now = findings.vitals["warm"][name], findings.vitals["after"][name]
        assert now.mebibytes < warm.mebibytes + GROWTH_MEBIBYTES, report(findings)
        # What was accepted may be told line by line; what was refused may not. A slow machine
        # gives up calls that the service takes.
        num_lines = now.num_log_lines - findings.vitals["before"][name].num_log_lines
        codes = grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED
        accepted = sum(findings.codes[name, code] for code in codes)
        assert num_lines < 2 * accepted + NUM_LIMITED_LINES, report(findings)
