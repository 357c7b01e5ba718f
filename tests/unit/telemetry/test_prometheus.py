"""Prometheus gets a service's figures: from loopback as they are, elsewhere by TLS and a token."""

import asyncio
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import (
    SynchronizerServiceServicer,
    SynchronizerServiceStub,
    add_SynchronizerServiceServicer_to_server,
)
from trinity.errors import UserError
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.server import Servicer, serve
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import (
    CredentialIssuer,
    CredentialRole,
    expiry_times,
)
from trinity.runtime.security.credentials import AUTHORITY, PLAINTEXT, TOKEN, Credentials
from trinity.runtime.settings import ServiceSettings
from trinity.runtime.telemetry import lifecycle, metrics
from trinity.runtime.telemetry.prometheus import serve_metrics

HOUR = timedelta(hours=1)
REFUSED = {"no token": 401, "another scope": 403, "one tenant": 403, "reader": 200}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Values of each kind of instrument."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_METRICS_EXPORTER", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    lifecycle.start("trinity-test", port=50052, scraped=True)
    metrics.STORED.add(3, {"trinity.fate": "committed"})
    metrics.REWARD.record(0.5)
    metrics.TRAINED_STEP.set(7, {"trinity.stage": "rft"})
    metrics.READY.register_callback(lambda: [(8, {"trinity.stage": "rft"})])
    yield
    lifecycle.stop()


def scrape(url: str, folder: Path | None = None, token: str = "") -> tuple[int, str]:
    """The status and the text of an answer."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"bearer {token}")
    tls = ssl.create_default_context(cafile=folder / AUTHORITY) if folder else None
    try:
        with urllib.request.urlopen(request, timeout=60, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.usefixtures("measured")
async def test_the_newest_values_of_each_kind_are_served() -> None:
    async with serve_metrics("127.0.0.1:0", PLAINTEXT) as address:
        _, before = await asyncio.to_thread(scrape, f"http://{address}/metrics")
        metrics.STORED.add(1, {"trinity.fate": "committed"})
        both = [asyncio.to_thread(scrape, f"http://{address}/metrics") for _ in range(2)]
        (_, after), (_, beside) = await asyncio.gather(*both)
    assert 'trinity_store_results_total{trinity_fate="committed"} 3.0' in before
    assert 'trinity_train_step{trinity_stage="rft"} 7.0' in before
    assert 'trinity_rows_ready{trinity_stage="rft"} 8.0' in before
    assert "rl_reward_value_sum 0.5" in before
    assert 'trinity_store_results_total{trinity_fate="committed"} 4.0' in after
    assert beside == after


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
@pytest.mark.usefixtures("measured")
async def test_promtool_finds_nothing_wrong() -> None:
    async with serve_metrics("127.0.0.1:0", PLAINTEXT) as address:
        _, text = await asyncio.to_thread(scrape, f"http://{address}/metrics")
    assert promtool(text) == (0, "")
    assert promtool(text + text)[0] != 0


def promtool(text: str) -> tuple[int, str]:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.usefixtures("measured")
async def test_beyond_loopback_it_takes_tls_and_a_reader_of_all_tenants(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    issuer = CredentialIssuer(tmp_path)

    def token(tenant: str, scope: Scope) -> str:
        part = CredentialRole(name="client", tenant=tenant, scopes=(scope,))
        return (issuer.issue(part, HOUR) / TOKEN).read_text()

    tokens = {
        "no token": "",
        "another scope": token("*", Scope.EXPLORER),
        "one tenant": token("a", Scope.READ),
        "reader": token("*", Scope.READ),
    }
    folder = issuer.issue(CredentialRole(name="buffer", scopes=()), HOUR)
    async with serve_metrics("0.0.0.0:0", Credentials(folder)) as address:
        url = f"https://127.0.0.1:{address.rpartition(':')[2]}/metrics"
        for name, expected in REFUSED.items():
            with subtests.test(name):
                status, text = await asyncio.to_thread(scrape, url, folder, tokens[name])
                assert status == expected
                assert ("trinity_store_results_total" in text) == (status == 200)
        with pytest.raises(OSError):
            await asyncio.to_thread(scrape, url.replace("https", "http"), None, tokens["reader"])


@pytest.mark.usefixtures("measured")
async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    issuer = CredentialIssuer(tmp_path)
    part = CredentialRole(name="buffer", scopes=())
    security = Credentials(issuer.issue(part, HOUR))
    async with serve_metrics("127.0.0.1:0", security) as address:
        host, _, port = address.rpartition(":")
        served = [await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))]
        until = {about["trinity.credential"]: end for end, about in expiry_times(security)}
        issuer.issue(part, 2 * HOUR)
        served.append(await asyncio.to_thread(ssl.get_server_certificate, (host, int(port))))
    renewed = {about["trinity.credential"]: end for end, about in expiry_times(security)}
    assert served[0] != served[1]
    for name in ("certificate", "token"):
        assert 3500 < renewed[name] - until[name] < 3700
    assert renewed["authority"] == until["authority"]


async def test_without_certificates_it_stays_on_loopback() -> None:
    with pytest.raises(UserError, match="refusing to serve metrics on 0"):
        async with serve_metrics("0.0.0.0:0", PLAINTEXT):
            pass


def test_metrics_that_are_switched_off_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(UserError, match="OTEL_SDK_DISABLED=true"):
        lifecycle.start("trinity-test", scraped=True)


@pytest.mark.usefixtures("measured")
def test_values_of_another_process_count_in_this_one() -> None:
    sent: list[tuple[str, float, object]] = []
    metrics.STORED.forward_to(lambda *value: sent.append(value))
    metrics.STORED.add(2, {"trinity.fate": "replayed"})
    assert sent == [("trinity.store.results", 2, {"trinity.fate": "replayed"})]
    got: list[tuple[float, object]] = []
    metrics.STORED._record = lambda *value: got.append(value)
    metrics.record(*sent[0])  # type: ignore[arg-type]  # a value of the pipe
    assert got == [(2, {"trinity.fate": "replayed"})]


class Synchronizer(SynchronizerServiceServicer):
    """Streams one message, and ends with its caller."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def WatchExperiments(
        self, request: pb.WatchExperimentsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchExperimentsResponse]:
        try:
            yield pb.WatchExperimentsResponse()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@pytest.mark.usefixtures("measured")
async def test_a_call_that_its_client_leaves_has_the_code_of_grpc() -> None:
    service = Synchronizer()
    name = pb.DESCRIPTOR.services_by_name["SynchronizerService"].full_name
    servicer = Servicer(
        name=name, add=add_SynchronizerServiceServicer_to_server, implementation=service
    )
    async with serve(ServiceSettings(), [servicer]) as server:
        async with open_channel(server.address) as channel:
            stub = SynchronizerServiceStub(channel)
            stream = stub.WatchExperiments(pb.WatchExperimentsRequest(), timeout=300)
            await stream.read()
            stream.cancel()
            await service.ended.wait()
        async with serve_metrics("127.0.0.1:0", PLAINTEXT) as address:
            _, text = await asyncio.to_thread(scrape, f"http://{address}/metrics")
    calls = [
        line for line in text.splitlines() if line.startswith("rpc_server_call") and name in line
    ]
    assert calls and all('rpc_response_status_code="CANCELLED"' in line for line in calls)
    assert "trinity_service_ready 0.0" in text
