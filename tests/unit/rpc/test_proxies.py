"""Proxies of the environment are for the internet, not for services and not for this machine."""

import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trinity.run.diagnosis import gather
from trinity.run.local.services import wait_serving
from trinity.runtime.proxies import reach_loopback_directly
from trinity.runtime.rpc.channel import open_channel, open_sync_channel
from trinity.runtime.rpc.server import serve
from trinity.runtime.settings import ServiceSettings

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(autouse=True)
def dead_proxy(monkeypatch: pytest.MonkeyPatch) -> str:
    """Names a proxy in every variable, at a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, address)
        monkeypatch.setenv(name.upper(), address)
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    return address


async def health(channel: grpc.aio.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)).status)


async def test_services_reach_one_another_past_a_proxy() -> None:
    async with serve(ServiceSettings(), []) as server:
        async with open_channel(server.address) as channel:
            assert await health(channel) == SERVING
        async with open_channel(server.address, None, gather.CHANNEL_OPTIONS) as channel:
            assert await health(channel) == SERVING
        await wait_serving("trainer", server.address, 5)
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):  # the control
            async with grpc.aio.insecure_channel(server.address) as channel:
                await health(channel)


async def test_clients_in_threads_reach_services_past_a_proxy() -> None:
    async with serve(ServiceSettings(), []) as server:
        with open_sync_channel(server.address) as channel:
            call = health_pb2_grpc.HealthStub(channel).Check.future(health_pb2.HealthCheckRequest())
            done = threading.Event()
            call.add_done_callback(lambda _: done.set())
            while not done.is_set():
                async with open_channel(server.address) as other:
                    await health(other)
            assert call.result().status == SERVING


class Models(BaseHTTPRequestHandler):
    """Answers any GET as an OpenAI-compatible server lists its models."""

    def do_GET(self) -> None:
        body = b'{"object": "list", "data": []}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


@pytest.fixture
def models() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Models) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_http_clients_of_libraries_reach_this_machine_past_a_proxy(models: str) -> None:
    def list_models() -> list[object]:
        with openai.OpenAI(base_url=models, api_key="k", max_retries=0) as client:
            return list(client.models.list())

    with pytest.raises(openai.APIConnectionError):  # the control
        list_models()
    reach_loopback_directly()
    assert list_models() == []
    with urllib.request.urlopen(f"{models}/models") as response:
        assert response.status == 200


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_the_users_exceptions_stay(name: str) -> None:
    environment = {"HTTPS_PROXY": "http://proxy:3128", name: "example.org, 127.0.0.1"}
    environment["no_grpc_proxy"] = "collector"
    reach_loopback_directly(environment)
    expected = "example.org,127.0.0.1,localhost,::1,[::1]"
    assert environment["no_proxy"] == environment["NO_PROXY"] == expected
    assert environment["no_grpc_proxy"] == "collector,localhost,127.0.0.1,::1,[::1]"


def test_without_a_proxy_the_environment_stays_as_it_is() -> None:
    environment = {"no_proxy": "", "https_proxy": "", "PATH": "/bin"}
    reach_loopback_directly(environment)
    assert environment == {"no_proxy": "", "https_proxy": "", "PATH": "/bin"}
