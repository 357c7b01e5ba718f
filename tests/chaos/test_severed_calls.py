"""A call whose server goes while it waits ends with an error, soon, and never hangs."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.run.local.addresses import free_port
from trinity.runtime.rpc.channel import open_channel, open_sync_channel

CALL_SECONDS = 600.0
SOON_SECONDS = 120.0


@contextmanager
def gone_once_called(how: signal.Signals) -> Iterator[str]:
    """The address of a server that is killed, or stopped, as soon as it has taken a call."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tests.chaos.silent_server", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "serving\n"
        watching = threading.Thread(target=_signal_once_called, args=(server, how))
        watching.start()
        yield address
        server.kill()
        watching.join()


def _signal_once_called(server: "subprocess.Popen[str]", how: signal.Signals) -> None:
    assert server.stdout is not None
    server.stdout.readline()
    server.send_signal(how)


CALL = pytest.mark.parametrize(
    "call", ["GetBatch", pytest.param("LeaseAssignments", marks=pytest.mark.thorough)]
)
HOW = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])


@HOW
@CALL
def test_a_call_of_a_thread_ends(call: str, how: signal.Signals) -> None:
    ended = threading.Event()

    def ask(address: str) -> None:
        with open_sync_channel(address) as channel:
            stub = BufferServiceStub(channel)
            with pytest.raises(grpc.RpcError) as failed:
                if call == "GetBatch":
                    list(stub.GetBatch(pb.GetBatchRequest(), timeout=CALL_SECONDS))
                else:
                    stub.LeaseAssignments(pb.LeaseAssignmentsRequest(), timeout=CALL_SECONDS)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        ended.set()

    with gone_once_called(how) as address:
        threading.Thread(target=ask, args=(address,), daemon=True).start()
        assert ended.wait(SOON_SECONDS), "the call does not end"


@HOW
@CALL
async def test_a_call_of_a_coroutine_ends(call: str, how: signal.Signals) -> None:
    with gone_once_called(how) as address:
        async with open_channel(address) as channel:
            stub = BufferServiceStub(channel)
            begun = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                if call == "GetBatch":
                    async for _ in stub.GetBatch(pb.GetBatchRequest(), timeout=CALL_SECONDS):
                        pass
                else:
                    await stub.LeaseAssignments(pb.LeaseAssignmentsRequest(), timeout=CALL_SECONDS)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            assert time.monotonic() - begun < SOON_SECONDS
