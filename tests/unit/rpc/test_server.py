"""A server answers with the right codes, says how it is, also to watchers, and ends in order."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from trinity.api.v1 import trainer_pb2, trainer_pb2_grpc
from trinity.errors import (
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Superseded,
    Unavailable,
    UserError,
)
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.server import RunningServer, Servicer, serve
from trinity.runtime.settings import ServiceSettings

NAME = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"].full_name
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PATIENT = ServiceSettings(drain_seconds=60.0)


class FailingTrainer(trainer_pb2_grpc.TrainerServiceServicer):
    """Raises what the test asks for."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.stands_still_seconds = 0.0

    async def GetTrainerStatus(
        self, request: trainer_pb2.GetTrainerStatusRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.GetTrainerStatusResponse:
        if self.error:
            raise self.error
        time.sleep(self.stands_still_seconds)  # noqa: ASYNC251 (nothing else goes on meanwhile)
        self.stands_still_seconds = 0.0
        return trainer_pb2.GetTrainerStatusResponse(step=3)


@dataclass
class Setup:
    server: RunningServer
    channel: grpc.aio.Channel
    trainer: FailingTrainer


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    trainer = FailingTrainer()
    servicer = Servicer(
        name=NAME,
        add=trainer_pb2_grpc.add_TrainerServiceServicer_to_server,
        implementation=trainer,
    )
    async with (
        serve(ServiceSettings(), [servicer]) as server,
        open_channel(server.address) as channel,
    ):
        yield Setup(server, channel, trainer)


async def call(setup: Setup) -> trainer_pb2.GetTrainerStatusResponse:
    stub = trainer_pb2_grpc.TrainerServiceStub(setup.channel)
    request = trainer_pb2.GetTrainerStatusRequest()
    answer: trainer_pb2.GetTrainerStatusResponse = await stub.GetTrainerStatus(request, timeout=5)
    return answer


async def health_of(setup: Setup, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(setup.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
    return int(reply.status)


async def test_a_call_is_answered(setup: Setup) -> None:
    assert (await call(setup)).step == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (NotFound("x"), grpc.StatusCode.NOT_FOUND),
        (PreconditionFailed("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (Superseded("x"), grpc.StatusCode.ABORTED),
    ],
)
async def test_each_error_has_its_code_and_its_text(
    setup: Setup, error: Exception, code: grpc.StatusCode
) -> None:
    setup.trainer.error = error
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(setup)
    assert (caught.value.code(), caught.value.details()) == (code, "x")


async def test_an_outage_behind_the_service_is_retried_then_unavailable(setup: Setup) -> None:
    setup.trainer.error = Unavailable("the database does not answer")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(setup)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_unexpected_error_leaks_nothing(setup: Setup) -> None:
    setup.trainer.error = RuntimeError("password=hunter2")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(setup)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "hunter2" not in str(caught.value.details())


async def test_garbage_is_an_invalid_argument_and_one_log_line(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    garbage = setup.channel.unary_unary(f"/{NAME}/GetTrainerStatus")
    for _ in range(50):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await garbage(b"\xff\xff\xff", timeout=5)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len([r for r in caplog.records if r.name.startswith("trinity")]) <= 1
    assert (await call(setup)).step == 3


async def test_live_is_not_ready(setup: Setup) -> None:
    assert await health_of(setup, "") == health_pb2.HealthCheckResponse.SERVING
    assert await health_of(setup, NAME) == health_pb2.HealthCheckResponse.NOT_SERVING
    await setup.server.health.set_ready(True)
    assert await health_of(setup, NAME) == health_pb2.HealthCheckResponse.SERVING
    await setup.server.health.set_ready(False, "the broker is away")
    assert await health_of(setup, NAME) == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_port_in_use_is_named(setup: Setup) -> None:
    settings = ServiceSettings(listen=setup.server.address)
    with pytest.raises(UserError, match=setup.server.address):
        async with serve(settings, []):
            pass


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.168.1.5:9000", "[::]:0", "example.org:1"])
async def test_only_loopback_is_bound(address: str) -> None:
    with pytest.raises(UserError, match="loopback"):
        async with serve(ServiceSettings(listen=address), []):
            pass


async def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(UserError, match="host:port"):
        async with serve(ServiceSettings(listen="localhost"), []):
            pass


NUM_CLIENTS = 12
CALLS_OF_ONE = 200


def codes_of_many_calls(address: str) -> Counter[grpc.StatusCode]:
    """All at once, from clients that share no connection."""
    with ExitStack() as stack:
        channels = [
            stack.enter_context(
                grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(NUM_CLIENTS)
        ]
        calls = [
            trainer_pb2_grpc.TrainerServiceStub(channel).GetTrainerStatus.future(
                trainer_pb2.GetTrainerStatusRequest(), timeout=60, wait_for_ready=True
            )
            for channel in channels
            for _ in range(CALLS_OF_ONE)
        ]
        return Counter(call.code() for call in calls)


async def test_calls_that_come_while_a_service_is_busy_are_all_answered(setup: Setup) -> None:
    setup.trainer.stands_still_seconds = 1.0
    codes = await asyncio.to_thread(codes_of_many_calls, setup.server.address)
    assert codes == {grpc.StatusCode.OK: NUM_CLIENTS * CALLS_OF_ONE}


async def test_a_watch_hears_the_end_and_does_not_hold_it_up() -> None:
    heard: list[int] = []

    async def watch(channel: grpc.aio.Channel, began: asyncio.Event) -> None:
        stub = health_pb2_grpc.HealthStub(channel)
        async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
            heard.append(answer.status)
            began.set()

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        began = asyncio.Event()
        async with serve(PATIENT, []) as server:
            channel = open_channel(server.address)
            watching = tasks.create_task(watch(channel, began))
            await began.wait()
        await watching
        await channel.close()
    assert heard == [SERVING, NOT_SERVING]


async def test_a_client_without_contracts_learns_them(setup: Setup) -> None:
    """By gRPC's own client of v1alpha, and by the same messages under the name of v1."""

    def learned() -> set[str]:
        with grpc.insecure_channel(setup.server.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            assert NAME in database.get_services()
            return set(pool.FindServiceByName(NAME).methods_by_name)

    assert "GetTrainerStatus" in await asyncio.to_thread(learned)
    method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    call = setup.channel.stream_stream(
        method,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = reflection_pb2.ServerReflectionRequest(list_services="*")
    async for answer in call(iter([asked]), timeout=10):
        assert NAME in [service.name for service in answer.list_services_response.service]
