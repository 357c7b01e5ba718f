"""`trinity why` asks services by address: which experiment is meant, and what is refused."""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import grpc
import pytest
import typer
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc, synchronizer_pb2, synchronizer_pb2_grpc
from trinity.cli.why import why
from trinity.errors import UserError
from trinity.run import contexts
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.remote import gather_from_services
from trinity.run.local.addresses import free_port
from trinity.run.places import Deployment
from trinity.runtime.security.credentials import PLAINTEXT, VARIABLE

RUNNING = synchronizer_pb2.EXPERIMENT_STATE_RUNNING
FINISHED = synchronizer_pb2.EXPERIMENT_STATE_FINISHED
FIRST = "6d1c7d0e-98a9-4dc5-93a3-0f2f5b5d0f11"
SECOND = "6d1c7d0e-98a9-4dc5-93a3-0f2f5b5d0f12"


def experiment(
    label: str, state: synchronizer_pb2.ExperimentState, experiment_id: str = FIRST
) -> synchronizer_pb2.Experiment:
    stage = synchronizer_pb2.Stage(name="rft", state=synchronizer_pb2.STAGE_STATE_RUNNING)
    return synchronizer_pb2.Experiment(
        id=experiment_id, label=label, tenant="math", state=state, stages=[stage]
    )


class Synchronizer(synchronizer_pb2_grpc.SynchronizerServiceServicer):
    """Knows some experiments, or refuses."""

    def __init__(self, known: Sequence[synchronizer_pb2.Experiment], refusal: str = "") -> None:
        self.known, self.refusal = known, refusal

    async def GetStatus(
        self, request: synchronizer_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> synchronizer_pb2.GetStatusResponse:
        if self.refusal:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, self.refusal)
        return synchronizer_pb2.GetStatusResponse(
            experiments=[
                one
                for one in self.known
                if request.experiment_id in ("", one.id) and request.label in ("", one.label)
            ]
        )


class Buffer(buffer_pb2_grpc.BufferServiceServicer):
    """Remembers whose work was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def GetBufferStatus(
        self, request: buffer_pb2.GetBufferStatusRequest, _: grpc.aio.ServicerContext
    ) -> buffer_pb2.GetBufferStatusResponse:
        self.asked.append((request.tenant, request.experiment_id))
        return buffer_pb2.GetBufferStatusResponse()


@contextlib.asynccontextmanager
async def served(synchronizer: Synchronizer) -> AsyncIterator[tuple[str, Buffer]]:
    """Both services behind one port."""
    server, buffer = grpc.aio.server(), Buffer()
    synchronizer_pb2_grpc.add_SynchronizerServiceServicer_to_server(synchronizer, server)
    buffer_pb2_grpc.add_BufferServiceServicer_to_server(buffer, server)
    alive = health.aio.HealthServicer()
    await alive.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(alive, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", buffer
    finally:
        await server.stop(None)


async def verdict(synchronizer: Synchronizer, named: str = "") -> tuple[str, list[tuple[str, str]]]:
    async with served(synchronizer) as (address, buffer):
        found = await gather_from_services(
            Deployment(synchronizer=address, buffer=address, security=PLAINTEXT, experiment=named)
        )
    return diagnose(found).text, buffer.asked


async def test_without_a_name_the_one_that_runs_is_meant_and_its_tenant_asked_for() -> None:
    known = [experiment("m/over", FINISHED, SECOND), experiment("m/runs", RUNNING)]
    _, asked = await verdict(Synchronizer(known))
    assert asked == [("math", FIRST)]


async def test_where_none_runs_the_newest_tells_its_end() -> None:
    known = [experiment("m/newest", FINISHED, SECOND), experiment("m/older", FINISHED)]
    assert (await verdict(Synchronizer(known)))[0] == "m/newest is finished."
    assert (await verdict(Synchronizer([])))[0] == "No experiment has been started."


@pytest.mark.parametrize("named", ["m/older", FIRST])
async def test_a_label_or_an_id_names_another(named: str) -> None:
    known = [experiment("m/newest", RUNNING, SECOND), experiment("m/older", FINISHED)]
    assert (await verdict(Synchronizer(known), named))[0] == "m/older is finished."


async def test_of_several_that_run_one_has_to_be_named() -> None:
    known = [experiment("m/a", RUNNING), experiment("m/b", RUNNING, SECOND)]
    with pytest.raises(UserError, match=rf"--experiment: m/a \({FIRST}\), m/b \({SECOND}\)"):
        await verdict(Synchronizer(known))
    assert (await verdict(Synchronizer(known), "m/b"))[1] == [("math", SECOND)]


async def test_an_unknown_one_and_a_refused_token_are_mistakes_of_the_caller() -> None:
    with pytest.raises(UserError, match="knows no experiment m/other: leave --experiment out"):
        await verdict(Synchronizer([experiment("m/a", RUNNING)]), "m/other")
    with pytest.raises(UserError, match=r"refuses \(the token has expired\).*--scope read"):
        await verdict(Synchronizer([], "the token has expired"))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv(contexts.VARIABLE, str(tmp_path / "contexts.json"))
    return iter((None,))


@pytest.mark.usefixtures("plain")
def test_a_service_that_is_down_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Not a mistake: the exit code is that of a run that is held up."""
    down, also_down = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with pytest.raises(typer.Exit) as ended:
        why(buffer=also_down, synchronizer=down)
    assert ended.value.exit_code == 3
    assert f"{down} refuses connections" in capsys.readouterr().out


@pytest.mark.usefixtures("plain")
def test_what_is_missing_or_too_much_is_named() -> None:
    with pytest.raises(UserError, match="--synchronizer is missing"):
        why(buffer="127.0.0.1:1")
    with pytest.raises(UserError, match="--buffer is missing"):
        why(synchronizer="127.0.0.1:1")
    with pytest.raises(UserError, match="--experiment needs the addresses of a deployment"):
        why(experiment="m/a")
    with pytest.raises(UserError, match=r"run\.yaml names a run of this machine"):
        why(Path("run.yaml"), buffer="127.0.0.1:1", synchronizer="127.0.0.1:2")
    with pytest.raises(UserError, match="refusing to speak to far:2 without TLS and a token"):
        why(buffer="far:1", synchronizer="far:2")
    with pytest.raises(UserError, match="nowhere"):
        why(buffer="127.0.0.1:1", synchronizer="nowhere")
