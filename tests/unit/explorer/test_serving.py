"""What is served: which weights, by which engines, and to whom."""

import asyncio
import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from services.explorer.engine.interface import EngineDied
from services.explorer.serving.access import ServingAccessPolicy, read_or_create_key
from services.explorer.serving.pool import ServingPool
from services.explorer.serving.setup import access_policy
from services.explorer.serving.work import newest_weights
from services.explorer.types import WeightsId, WeightsVersion, model_weights
from tests.integration.explorer.peers import write_weights
from tests.unit.explorer.builders import ArithmeticEngine, build_plan
from trinity.errors import ManifestError, UserError
from trinity.launch.modes import serve_plan
from trinity.security.authorization import Scope
from trinity.security.certificates import CredentialIssuer, parts_of
from trinity.security.credentials import PLAINTEXT, Credentials
from trinity.security.tokens import issue_token
from trinity.types import JsonObject

SECONDS = 30


def publish(run: Path, stage: str, version: int, content: bytes) -> Path:
    """Weights in a run's directory, as its trainer leaves them."""
    directory = run / "stages" / stage / "weights" / f"v{version}-1"
    write_weights(directory, version, content)
    return directory


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
    request = make_mocked_request("POST", "/v1", headers={"Authorization": f"Bearer {token}"})
    refusal = of.refusal(request)
    return refusal.status if refusal is not None else 200


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
