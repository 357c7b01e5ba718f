"""What is served: which weights, by which engines, and to whom."""

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import httpx
import pytest
from starlette.requests import Request

from services.explorer.engine.interface import EngineDied
from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.errors import new_application
from services.explorer.openai_api.handler import ApiHandler
from services.explorer.serving.access import ServingAccessPolicy, read_or_create_key
from services.explorer.serving.clients import ClientServer, ClientSessions
from services.explorer.serving.pool import ModelBorrower, ServingPool
from services.explorer.serving.server import ModelServer
from services.explorer.serving.work import ServingRunner, access_policy, announced_weights
from services.explorer.types import WeightsId, WeightsVersion, model_weights
from tests.integration.explorer.peers import write_weights
from tests.support.model_free.damage import FAULTS
from tests.unit.explorer.builders import ArithmeticEngine, build_plan, unheard_beats
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.parts import ServedRun
from trinity.errors import ManifestError, UserError
from trinity.run.launch.modes import serve_plan
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.presence import Heartbeats
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import CredentialIssuer, parts_of
from trinity.runtime.security.credentials import PLAINTEXT, Credentials
from trinity.runtime.security.tokens import issue_token
from trinity.types import JsonObject
from trinity.weights.ledger import KEY_FILE, LedgerEntry, LedgerError, LedgerKey, WeightsLedger
from trinity.weights.manifest import ManifestHead, seal

SECONDS = 30


def publish(run: Path, stage: str, version: int, content: bytes) -> Path:
    """Weights in a run's directory, as its trainer leaves them, and in its ledger."""
    directory = run / "stages" / stage / "weights" / f"v{version}-1"
    announce(run, stage, write_weights(directory, version, content))
    return directory


def announce(run: Path, stage: str, version: pb.Version) -> None:
    folder = run / "stages" / stage
    ledger = WeightsLedger(folder=folder, stage=stage, key=LedgerKey.create(run))
    entry = LedgerEntry(
        directory=Path(version.path).name,
        version=version.version,
        incarnation=version.incarnation,
        manifest_sha256=version.manifest_sha256.hex(),
        weights_sha256=version.weights_sha256.hex(),
    )
    before = ledger.read() if ledger.path.exists() else ()
    ledger.write([*before, entry])


def newest_weights(run: Path) -> WeightsVersion | None:
    return next(iter(announced_weights(run)), None)


def with_stages(run: Path, *names: str) -> None:
    run.mkdir(exist_ok=True)
    (run / "config.json").write_text(json.dumps({"stages": [{"name": name} for name in names]}))


def test_the_last_stage_with_weights_has_the_newest(tmp_path: Path) -> None:
    assert newest_weights(tmp_path / "nothing") is None
    with_stages(tmp_path, "warmup", "rft", "later")
    assert newest_weights(tmp_path) is None
    publish(tmp_path, "warmup", 20, b"a")
    for version in (2, 10):
        publish(tmp_path, "rft", version, b"%d" % version)
    (tmp_path / "stages/rft/weights/v11-1.partial").mkdir()
    (tmp_path / "stages/rft/weights/v12-1").mkdir()
    found = newest_weights(tmp_path)
    assert found is not None
    assert (found.path.parent.parent.name, found.id) == (
        "rft",
        WeightsId(version=10, incarnation=1),
    )


class LoadingEngine(ArithmeticEngine):
    """Loads when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = asyncio.Event()

    async def load_weights(self, directory: Path) -> None:
        await self.may_load.wait()
        await super().load_weights(directory)


def pool_of(engines: list[LoadingEngine], min_open: int = 1) -> ServingPool:
    return ServingPool(engines, loaded=model_weights("/model"), min_open=min_open)


def newer(folder: Path) -> WeightsVersion:
    with_stages(folder, "main")
    publish(folder, "main", 1, b"1")
    found = newest_weights(folder)
    assert found is not None
    return found


async def until_open(pool: ServingPool, count: int) -> None:
    async with asyncio.timeout(SECONDS):
        while pool.num_open != count:  # noqa: ASYNC110 - the pool tells nobody
            await asyncio.sleep(0.01)


async def test_some_engines_answer_while_others_load(tmp_path: Path) -> None:
    engines = [LoadingEngine() for _ in range(3)]
    pool = pool_of(engines, min_open=2)
    loading = asyncio.ensure_future(pool.load_all(newer(tmp_path)))
    await until_open(pool, 2)
    async with asyncio.timeout(SECONDS), pool.borrow() as slot:
        assert slot.weights.id.version == 0
    for engine in engines:
        engine.may_load.set()
    await loading
    assert pool.num_open == 3
    assert [len(engine.loaded) for engine in engines] == [1, 1, 1]


async def test_an_engine_keeps_its_weights_until_its_calls_are_over(tmp_path: Path) -> None:
    engine = LoadingEngine()
    engine.may_load.set()
    pool = pool_of([engine])
    async with pool.borrow():
        loading = asyncio.ensure_future(pool.load_all(newer(tmp_path)))
        await until_open(pool, 0)
        assert not engine.loaded
    async with asyncio.timeout(SECONDS), pool.borrow() as slot:
        assert slot.weights.id.version == 1
    await loading


async def test_weights_that_are_not_whole_leave_the_old_ones_answering(tmp_path: Path) -> None:
    engine = LoadingEngine()
    pool = pool_of([engine])
    weights = newer(tmp_path)
    (weights.path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ManifestError):
        await pool.load_all(weights)
    async with asyncio.timeout(SECONDS), pool.borrow() as slot:
        assert slot.weights.id.version == 0


class RobbedEngine(LoadingEngine):
    """Finds no files any more, half way through."""

    async def load_weights(self, directory: Path) -> None:
        shutil.rmtree(directory)
        raise FileNotFoundError(directory)


async def test_an_engine_whose_files_are_removed_while_it_loads_is_started_anew(
    tmp_path: Path,
) -> None:
    """It has half of them, and loading others would mix both; the run that is served goes on."""
    pool = pool_of([RobbedEngine()])
    with pytest.raises(EngineDied, match="removed while it loaded them"):
        await pool.load_all(newer(tmp_path))
    assert pool.num_open == 0


class BrokenEngine(LoadingEngine):
    """Dies while it loads."""

    async def load_weights(self, directory: Path) -> None:
        raise EngineDied(f"gone in {directory}")


async def test_an_engine_whose_loading_ends_half_way_answers_no_more(tmp_path: Path) -> None:
    sound = LoadingEngine()
    sound.may_load.set()
    pool = pool_of([BrokenEngine(), sound])
    with pytest.raises(EngineDied):
        await pool.load_all(newer(tmp_path))
    async with pool.borrow() as slot:
        assert (slot.engine, slot.weights.id.version) == (sound, 1)
    assert pool.num_open == 1


def access(security: Credentials, host: str = "127.0.0.1") -> ServingAccessPolicy:
    return ServingAccessPolicy(host=host, security=security, key="key", tenant="mine")


def status(of: ServingAccessPolicy, token: str) -> int:
    """What a request with it is answered; 200 lets it in."""
    headers = [(b"authorization", f"Bearer {token}".encode())]
    refusal = of.refusal(Request({"type": "http", "headers": headers}))
    return refusal.status_code if refusal is not None else 200


def test_beyond_loopback_nothing_is_served_without_tokens() -> None:
    access(PLAINTEXT).check_host()
    with pytest.raises(UserError, match=r"listen_address: 0\.0\.0\.0"):
        access(PLAINTEXT, "0.0.0.0").check_host()


async def test_on_loopback_the_key_lets_in() -> None:
    assert [status(access(PLAINTEXT), one) for one in ("key", "guess", "")] == [200, 401, 401]


def test_a_key_that_is_not_given_is_generated_once(tmp_path: Path) -> None:
    path = tmp_path / "run-serve/api_key"
    key = read_or_create_key(path)
    assert len(key) > 40 and key != "EMPTY"
    assert read_or_create_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(UserError, match="other users may read"):
        read_or_create_key(path)
    path.chmod(0o600)
    path.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        read_or_create_key(path)


@pytest.mark.parametrize("given", [None, "EMPTY"])
def test_a_model_is_never_served_with_the_placeholder_of_a_key(
    given: str | None, tmp_path: Path
) -> None:
    rollout: JsonObject = {} if given is None else {"api_key": given}
    [stage] = serve_plan(build_plan(tmp_path, explorer={"rollout_model": rollout})).stages
    policy = access_policy(stage, "mine")
    assert policy.key_file is not None and policy.key_file.parent.name.endswith("-serve")
    assert policy.key_file.read_text() == policy.key != "EMPTY"
    assert [status(policy, key) for key in (policy.key, "EMPTY", "")] == [200, 401, 401]


def test_a_key_that_is_given_is_in_no_file(tmp_path: Path) -> None:
    [stage] = serve_plan(
        build_plan(tmp_path, explorer={"rollout_model": {"api_key": "given"}})
    ).stages
    policy = access_policy(stage, "mine")
    assert (policy.key, policy.key_file) == ("given", None)


async def test_with_tokens_it_takes_the_scope_and_the_tenant(tmp_path: Path) -> None:
    issuer = CredentialIssuer(tmp_path)
    explorer = next(part for part in parts_of({}) if part.name == "explorer")
    guarded = access(Credentials(issuer.issue(explorer, timedelta(hours=1))), "0.0.0.0")
    guarded.check_host()
    assert guarded.tls is not None

    def token(tenant: str, scope: Scope, hours: float = 1) -> str:
        return issue_token(
            issuer.signing_key,
            subject="alice",
            tenant=tenant,
            scopes=[scope],
            lifetime=timedelta(hours=hours),
        )

    assert status(guarded, token("mine", Scope.SUBMIT)) == 200
    assert status(guarded, token("*", Scope.SUBMIT)) == 200
    assert status(guarded, token("other", Scope.SUBMIT)) == 403
    assert status(guarded, token("mine", Scope.READ)) == 403
    assert status(guarded, token("mine", Scope.SUBMIT, hours=-1)) == 401
    assert status(guarded, "key") == 401
    server = ClientServer(
        sessions=cast(ClientSessions, None),
        compares="",
        is_ready=lambda: True,
        access=guarded,
        port=0,
        borrower=cast(ModelBorrower, None),
        handler=ApiHandler(writer=cast(ResponseWriter, None)),
        names=("m",),
        table=ConnectionTable(HttpLimits.from_open_files()),
    )
    app = httpx.ASGITransport(new_application(server._routes()))
    async with httpx.AsyncClient(transport=app, base_url="http://here") as client:
        for path in ("/sessions", "/v1/chat/completions"):
            headers = {"authorization": f"Bearer {token('other', Scope.SUBMIT)}"}
            refused = await client.post(path, json={"name": "a"}, headers=headers)
            assert refused.status_code == 403
            assert "it takes a token of this tenant" in refused.json()["error"]["message"]


def runner_of(run: Path, pool: ServingPool, heartbeats: Heartbeats) -> ServingRunner:
    """Looks for weights, and never opens its address."""
    plan = build_plan(run, mode="serve")
    [stage] = serve_plan(plan).stages
    served = stage.model_copy(update={"served": ServedRun(job_dir=str(run))})
    return ServingRunner(
        plan=served,
        pool=pool,
        server=cast(ModelServer, None),
        access=cast(ServingAccessPolicy, None),
        heartbeats=heartbeats,
        drain_seconds=0,
    )


@pytest.fixture
async def look(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Has a runner look for weights; returns the version that answers then."""
    engine = LoadingEngine()
    engine.may_load.set()
    pool = pool_of([engine])
    with_stages(tmp_path, "warmup", "rft")
    async with unheard_beats() as heartbeats:
        runner = runner_of(tmp_path, pool, heartbeats)

        async def version() -> int:
            await runner._load_newest()
            return pool.oldest_weights.id.version

        yield version


Look = Callable[[], Awaitable[int]]


async def test_a_forged_directory_is_not_served(look: Look, tmp_path: Path) -> None:
    publish(tmp_path, "rft", 2, b"2")
    assert await look() == 2
    for stage in ("rft", "warmup"):  # of one stage there is a ledger, of the other none
        write_weights(tmp_path / "stages" / stage / "weights/v99-9", 99, b"forged")
    write_weights(tmp_path / "stages/later/weights/v99-9", 99, b"forged")
    assert await look() == 2
    publish(tmp_path, "rft", 3, b"3")
    assert await look() == 3, "control: an announced one is"


async def test_a_forged_directory_in_the_place_of_an_announced_one_is_not_served(
    look: Look, tmp_path: Path
) -> None:
    publish(tmp_path, "rft", 2, b"2")
    directory = publish(tmp_path, "rft", 3, b"3")
    shutil.rmtree(directory)
    write_weights(directory, 3, b"forged")
    assert await look() == 2


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_newest_whole_weights_are_served_before_damaged_ones(
    look: Look, tmp_path: Path, fault: str
) -> None:
    publish(tmp_path, "rft", 2, b"2")
    directory = publish(tmp_path, "rft", 3, b"3")
    (directory / "config.json").write_text("model")
    announced = tmp_path / "stages/rft/announced.json"
    announced.unlink()
    shutil.rmtree(directory.with_name("v2-1"))
    publish(tmp_path, "rft", 2, b"2")
    version = seal_again(directory)
    announce(tmp_path, "rft", version)
    FAULTS[fault](directory)
    assert await look() == 2
    assert await look() == 2
    publish(tmp_path, "rft", 4, b"4")
    assert await look() == 4


def seal_again(directory: Path) -> pb.Version:
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    content = files["model.safetensors"]
    shutil.rmtree(directory)
    directory.mkdir()
    for name in ("model.safetensors", "config.json"):
        (directory / name).write_bytes(files[name])
    digest = hashlib.sha256(content).digest()
    head = ManifestHead(
        kind="weights", stage="rft", step=3, incarnation=1, weights_sha256=digest.hex()
    )
    return pb.Version(
        version=3,
        incarnation=1,
        path=str(directory),
        manifest_sha256=seal(directory, head),
        weights_sha256=digest,
    )


async def test_damaged_weights_are_hashed_again_only_when_they_change(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = publish(tmp_path, "rft", 3, b"3")
    whole = (directory / "model.safetensors").read_bytes()
    (directory / "model.safetensors").write_bytes(b"4")
    loads = []
    load = ServingPool.load_all

    async def counted(self: ServingPool, weights: WeightsVersion) -> None:
        loads.append(weights)
        await load(self, weights)

    monkeypatch.setattr(ServingPool, "load_all", counted)
    assert [await look() for _ in range(5)] == [0] * 5
    assert len(loads) == 1
    (directory / "model.safetensors").write_bytes(whole)
    assert await look() == 3


@pytest.mark.parametrize("content", [b"", b'{"stages": [{"na', b"\xff", b"[]", b'{"stages": 3}'])
async def test_a_half_written_plan_ends_nothing(look: Look, tmp_path: Path, content: bytes) -> None:
    publish(tmp_path, "rft", 2, b"2")
    plan = tmp_path / "config.json"
    whole = plan.read_bytes()
    plan.write_bytes(content)
    assert await look() == 0
    plan.write_bytes(whole)
    assert await look() == 2
    plan.write_bytes(content)
    assert await look() == 2


@pytest.mark.parametrize("name", [KEY_FILE, "stages/rft/announced.json"])
async def test_a_half_written_ledger_or_key_leaves_the_weights_that_answer(
    look: Look, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(tmp_path, "rft", 2, b"2")
    assert await look() == 2
    publish(tmp_path, "rft", 3, b"3")
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    assert [await look() for _ in range(3)] == [2] * 3
    assert caplog.text.count("the run's weights are not served") == 1, "said once"
    path.write_bytes(whole)
    assert await look() == 3


def test_weights_without_a_ledger_are_refused_with_the_way_to_serve_them(tmp_path: Path) -> None:
    with_stages(tmp_path, "rft")
    write_weights(tmp_path / "stages/rft/weights/v2-1", 2, b"2")
    with pytest.raises(LedgerError, match=r"v2-1 was announced.*`model\.model_path`"):
        announced_weights(tmp_path)
