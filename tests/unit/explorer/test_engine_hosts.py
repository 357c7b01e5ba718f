"""Hosts of an engine: what a setting or a stage lacks is said, and a lost host is named."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

import trinity
from services.explorer.control.explorer import Explorer, ExplorerServicer
from services.explorer.delivery.outbox import Outbox
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.engine import hosts as hosts_module
from services.explorer.engine.hosts import EngineHosts, check_engine, check_place
from services.explorer.engine.interface import Engine, EngineDied, EngineOptions, EngineSpan
from services.explorer.engine.vllm_options import Hardware, engine_arguments, span_environment
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import RolloutCounters
from tests.unit.explorer.builders import ArithmeticEngine, unheard_beats
from tests.unit.explorer.test_vllm_options import CPU, GPU, options
from trinity.api.v1.hosts_pb2 import HostHello, HostMessage, HostReport, LeaderMessage
from trinity.errors import Forbidden, InvalidRequest, PreconditionFailed, TrinityError, UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.rpc import host_group as group_module

NOBODY = "127.0.0.1:9"


def settings(**values: object) -> ExplorerSettings:
    given = {"buffer": "b:1", "synchronizer": "s:1", "nats_url": "nats://n", **values}
    return ExplorerSettings.model_validate(given)


def two_hosts(**values: object) -> EngineHosts:
    return EngineHosts(settings(num_hosts=2, **values))


def hello(**changes: object) -> HostMessage:
    given = {
        "host": 1,
        "num_hosts": 2,
        "release": trinity.__version__,
        "unix_millis": int(time.time() * 1000),
        "address": "127.0.0.2",
    }
    return HostMessage(hello=HostHello(**{**given, **changes}))  # type: ignore[arg-type]


class Stream:
    """Messages of a host, which lives for as long as a test lets it."""

    def __init__(self, first: HostMessage) -> None:
        self.said: asyncio.Queue[HostMessage | None] = asyncio.Queue()
        self.said.put_nowait(first)

    async def requests(self) -> AsyncIterator[HostMessage]:
        while (message := await self.said.get()) is not None:
            yield message


def test_a_host_alone_needs_nothing() -> None:
    check_place(settings())
    check_place(settings(num_hosts=2))
    check_place(settings(num_hosts=2, host=1, leader="127.0.0.1:5", engine_address="127.0.0.2"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"host": 1}, "TRINITY_EXPLORER_HOST is 1, and TRINITY_EXPLORER_NUM_HOSTS 1"),
        ({"num_hosts": 2, "host": 1}, "give its host:port as TRINITY_EXPLORER_LEADER"),
        (
            {"num_hosts": 2, "host": 1, "leader": "10.0.0.1:5"},
            "which the leader 10.0.0.1:5 does not",
        ),
        ({"num_hosts": 2, "engine_address": "0.0.0.0"}, "workers talk without encryption"),
        ({"num_hosts": 2, "engine_address": "8.8.8.8"}, "ENGINE_ADDRESS is 8.8.8.8, and workers"),
        ({"num_hosts": 2, "engine_address": "explorer-0"}, "give an IP address"),
        ({"num_hosts": 2, "engine_address": "10.255.254.253"}, "no network interface"),
    ],
)
def test_what_is_wrong_is_named_with_its_variable(values: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_place(settings(**values))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (options(tensor_parallel_size=3), "has 3 workers, which cannot be shared out evenly"),
        (options(), "has 1 workers, which cannot be shared out evenly"),
        (options(tensor_parallel_size=2, engine_num=2), "set `engine_num` and `data_parallel"),
        (options(tensor_parallel_size=2, data_parallel_size=2), "to 1"),
        (replace(options(tensor_parallel_size=2), num_process_gpus=3), "auxiliary models"),
        (replace(options(tensor_parallel_size=2), sleeps=True), "`mode: colocate` is one GPU"),
    ],
)
def test_an_engine_that_does_not_fit_the_hosts_is_refused(wanted: EngineOptions, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_engine(wanted, 2)


def test_engines_that_fit_are_taken() -> None:
    check_engine(options(tensor_parallel_size=2), 2)
    check_engine(options(tensor_parallel_size=8, pipeline_parallel_size=2), 2)


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_vllm_is_told_where_the_workers_meet(machine: Hardware) -> None:
    span = EngineSpan(
        num_hosts=2, host=1, address="10.0.0.2", meeting_address="10.0.0.1", meeting_port=7
    )
    arguments = engine_arguments(replace(options(tensor_parallel_size=4), span=span), machine)
    assert arguments["tensor_parallel_size"] == 4
    assert arguments["distributed_executor_backend"] == "mp"
    assert (arguments["nnodes"], arguments["node_rank"]) == (2, 1)
    assert (arguments["master_addr"], arguments["master_port"]) == ("10.0.0.1", 7)


def test_workers_use_the_interface_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    variables = span_environment("127.0.0.2", GPU)
    assert variables["VLLM_HOST_IP"] == "127.0.0.2"
    assert variables["GLOO_SOCKET_IFNAME"] == variables["NCCL_SOCKET_IFNAME"]
    assert "VLLM_CPU_OMP_THREADS_BIND" not in variables


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"host": 2}, InvalidRequest, "host 2 of 2 wants to join the engine of 2"),
        ({"num_hosts": 3}, InvalidRequest, "the same TRINITY_EXPLORER_NUM_HOSTS"),
        ({"release": "0.0.0"}, PreconditionFailed, "runs release 0.0.0"),
        ({"tenant": "other"}, Forbidden, "another tenant"),
        (
            {"address": "10.0.0.2"},
            PreconditionFailed,
            "host 1 has the address 10.0.0.2 in the engine, and the leader",
        ),
    ],
)
async def test_a_host_that_differs_is_refused(
    changes: dict[str, object], error: type[TrinityError], said: str
) -> None:
    with pytest.raises(error, match=said):
        await anext(two_hosts().group.serve(Stream(hello(**changes)).requests()))


async def test_a_second_host_of_a_number_is_refused_while_the_first_lives() -> None:
    hosts = two_hosts()
    joined = asyncio.create_task(_read(hosts, Stream(hello())))
    await _until(lambda: not hosts.group.missing)
    with pytest.raises(PreconditionFailed, match=r"there is a host 1 already, 127\.0\.0\.2"):
        await anext(hosts.group.serve(Stream(hello()).requests()))
    assert not hosts.group.missing
    joined.cancel()


@pytest.mark.usefixtures("no_store")
async def test_a_host_that_leaves_ends_a_call_that_hangs_and_is_named() -> None:
    hosts, stream = two_hosts(), Stream(hello())
    joined = asyncio.create_task(_read(hosts, stream))
    await _until(lambda: not hosts.group.missing)
    await hosts.start_engine(options(tensor_parallel_size=2), start_at_once)
    call = asyncio.create_task(hosts.unless_failed(asyncio.sleep(3600)))
    await asyncio.sleep(0)
    stream.said.put_nowait(None)
    with pytest.raises(EngineDied, match=r"host 1 \(127.0.0.2\) has ended its connection"):
        async with asyncio.timeout(5):
            await call
    await joined
    assert hosts.group.missing == (1,)


async def test_the_wait_for_a_host_is_shown_and_ends() -> None:
    hosts = two_hosts(host_wait_seconds=0.2)
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    waiting = asyncio.create_task(hosts.wait_until_complete(waits))
    await _until(lambda: bool(waits.to_proto()))
    (wait,) = waits.to_proto()
    assert wait.reason == "host 1 of the engine's 2 to join"
    assert 0 < wait.deadline_seconds <= 0.2
    with pytest.raises(UserError, match=r"host 1 .* did not join in 0.2 s \(TRINITY_EXPLORER_HOST"):
        await waiting


@pytest.fixture
def no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "_open_store", lambda _: SimpleNamespace(port=7))


@pytest.mark.usefixtures("no_store")
async def test_hosts_start_what_the_leader_starts_and_kill_it_with_the_engine() -> None:
    hosts, stream = two_hosts(), Stream(hello())
    told: list[LeaderMessage] = []

    async def start(given: EngineOptions) -> Engine:
        assert given.span is not None
        return ArithmeticEngine()

    joined = asyncio.create_task(_read(hosts, stream, told))
    await _until(lambda: not hosts.group.missing)
    engine = await hosts.start_engine(options(tensor_parallel_size=2), start)
    await _until(lambda: bool(told))
    arguments = json.loads(told[0].start_json)
    assert (arguments["nnodes"], arguments["master_port"]) == (2, 7)
    await engine.check()
    await engine.close()
    await _until(lambda: len(told) > 1)
    assert told[1].kill
    joined.cancel()


async def start_at_once(_: EngineOptions) -> Engine:
    return ArithmeticEngine()


@pytest.mark.usefixtures("no_store")
async def test_a_host_that_leaves_an_engine_without_calls_is_named_and_ends_it() -> None:
    hosts, stream, notes = two_hosts(), Stream(hello()), list[str]()
    joined = asyncio.create_task(_read(hosts, stream))
    following = asyncio.create_task(hosts.follow_engine(notes.append))
    await _until(lambda: not hosts.group.missing)
    await hosts.start_engine(options(tensor_parallel_size=2), start_at_once)
    await _until(lambda: notes[-1])
    stream.said.put_nowait(None)
    with pytest.raises(EngineDied, match=r"host 1 \(127.0.0.2\) has ended its connection"):
        async with asyncio.timeout(5):
            await following
    assert notes[-2:] == ["engine over 2 hosts: 2 joined", ""]
    await joined


@pytest.mark.usefixtures("no_store")
async def test_a_host_whose_workers_end_without_calls_is_named() -> None:
    hosts, stream = two_hosts(), Stream(hello())
    joined = asyncio.create_task(_read(hosts, stream))
    await _until(lambda: not hosts.group.missing)
    await hosts.start_engine(options(tensor_parallel_size=2), start_at_once)
    ended = HostReport(start=1, ended="its workers ended with exit code -9")
    stream.said.put_nowait(HostMessage(report=ended))
    with pytest.raises(EngineDied, match=r"host 1 \(127.0.0.2\): its workers ended"):
        async with asyncio.timeout(5):
            await hosts.follow_engine(lambda _: None)
    joined.cancel()


@pytest.mark.usefixtures("no_store")
async def test_a_host_that_is_silent_without_calls_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "LOST_SECONDS", 0.5)
    monkeypatch.setattr(group_module, "BEAT_SECONDS", 0.1)
    hosts = two_hosts()
    joined = asyncio.create_task(_read(hosts, Stream(hello())))
    await _until(lambda: not hosts.group.missing)
    await hosts.start_engine(options(tensor_parallel_size=2), start_at_once)
    with pytest.raises(EngineDied, match=r"host 1 \(127.0.0.2\) has not answered for"):
        async with asyncio.timeout(5):
            await hosts.follow_engine(lambda _: None)
    await joined


@pytest.mark.usefixtures("no_store")
async def test_a_host_that_leaves_before_an_engine_or_after_it_ends_nothing() -> None:
    hosts, notes = two_hosts(), list[str]()
    following = asyncio.create_task(hosts.follow_engine(notes.append))
    for starts in (False, True):
        stream = Stream(hello())
        joined = asyncio.create_task(_read(hosts, stream))
        await _until(lambda: not hosts.group.missing)
        if starts:
            engine = await hosts.start_engine(options(tensor_parallel_size=2), start_at_once)
            await _until(lambda: notes[-1])
            await engine.close()
            await _until(lambda: not notes[-1])
        stream.said.put_nowait(None)
        await joined
    assert not following.done()
    following.cancel()


@pytest.mark.usefixtures("no_store")
async def test_the_process_of_an_idle_leader_ends_with_a_host_and_shows_how_many_joined() -> None:
    given = settings(buffer=NOBODY, synchronizer=NOBODY, listen="127.0.0.1:0", num_hosts=2)
    hosts, stream = EngineHosts(given), Stream(hello())
    explorer = Explorer(
        settings=given,
        start_engine=start_at_once,
        broker=NatsBroker(f"nats://{NOBODY}"),
        hosts=hosts,
    )
    running = asyncio.create_task(explorer.run_until(asyncio.Event()))
    joined = asyncio.create_task(_read(hosts, stream))
    await _until(lambda: not hosts.group.missing)
    await hosts.start_engine(options(tensor_parallel_size=2), start_at_once)
    await _until(
        lambda: explorer._heartbeats.member.activity == "idle; engine over 2 hosts: 2 joined"
    )
    stream.said.put_nowait(None)
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(20):
            await running
    assert raised.group_contains(EngineDied, match="host 1 .* has ended its connection")
    await joined


@pytest.mark.usefixtures("no_store")
async def test_workers_that_do_not_start_elsewhere_fail_the_start_with_their_words() -> None:
    hosts, stream = two_hosts(), Stream(hello())
    joined = asyncio.create_task(_read(hosts, stream))
    await _until(lambda: not hosts.group.missing)

    async def never(_: EngineOptions) -> Engine:
        ended = HostReport(start=1, ended="ValueError: no such model")
        stream.said.put_nowait(HostMessage(report=ended))
        await asyncio.sleep(3600)
        raise AssertionError

    with pytest.raises(RuntimeError, match=r"host 1 \(127.0.0.2\): ValueError: no such model"):
        async with asyncio.timeout(5):
            await hosts.start_engine(options(tensor_parallel_size=2), never)
    joined.cancel()


@pytest.mark.usefixtures("no_store")
async def test_a_host_that_is_gone_at_the_start_ends_it_as_a_death_does() -> None:
    async def never(_: EngineOptions) -> Engine:
        await asyncio.sleep(3600)
        raise AssertionError

    with pytest.raises(EngineDied, match="host 1 has ended its connection"):
        async with asyncio.timeout(5):
            await two_hosts().start_engine(options(tensor_parallel_size=2), never)


async def test_an_explorer_alone_takes_no_hosts() -> None:
    async with unheard_beats() as heartbeats:
        servicer = ExplorerServicer(heartbeats, RolloutCounters(), Outbox(time.monotonic))
        with pytest.raises(PreconditionFailed, match="leads no engine over several hosts"):
            await anext(servicer.JoinEngine(Stream(hello()).requests(), None))


async def _read(
    hosts: EngineHosts, stream: Stream, told: list[LeaderMessage] | None = None
) -> None:
    """Reads as a host; records what it is told, without signs of life."""
    async for message in hosts.group.serve(stream.requests()):
        if told is not None and message.WhichOneof("part"):
            told.append(message)


async def _until(met: object) -> None:
    assert callable(met)
    async with asyncio.timeout(5):
        while not met():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.005)
