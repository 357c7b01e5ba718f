"""The database is lost and comes back from a backup, older than all else; real services, no model."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.integration.deploy.test_one_node import JOBS
from tests.integration.deploy.test_source_run import deployment, lay_over
from tests.support.deployed.by_hand import ByHand, by_hand
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import (
    experiment_plan,
    run_to_end,
    start_experiment,
    wait_until_ended,
)
from tests.support.model_free.stack import MODULES
from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.deploy.backup import stored_backups
from trinity.runtime.rpc.channel import open_channel
from trinity.weights.manifest import MANIFEST_NAME, Manifest, verify

pytestmark = pytest.mark.timeout(600)
STEPS = 24
STORES = ("synchronizer", "buffer")


@dataclass(slots=True)
class Node:
    """One node whose services with a database may be stopped and started."""

    by_hand: ByHand
    stores: ExitStack

    @property
    def synchronizer(self) -> str:
        return self.by_hand.address("synchronizer")

    @property
    def backups(self) -> Path:
        return self.by_hand.folder / "backups"

    def job(self, *names: str) -> None:
        for name in names:
            done = self.by_hand.run(name)
            assert done.returncode == 0, done.stderr

    def refused(self, name: str) -> str:
        done = self.by_hand.run(name)
        assert done.returncode == 2, done.stderr
        return done.stderr

    def start(self) -> None:
        for name in STORES:
            self.stores.enter_context(self.by_hand.service(name))
        for name in STORES:
            self.by_hand.wait_ready(name)

    def query(self, text: str, database: str = "trinity") -> list[tuple[object, ...]]:
        dsn = (self.by_hand.secrets / "admin" / "dsn").read_text()
        with psycopg.connect(dsn, dbname=database, autocommit=True) as connection:
            found = connection.execute(text.encode())
            return found.fetchall() if found.description else []

    def lose_database(self) -> None:
        self.stores.close()
        self.query("DROP DATABASE trinity WITH (FORCE)", "postgres")
        self.query("DROP ROLE buffer, synchronizer, backup", "postgres")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    plan = experiment_plan(tmp_path)
    plan.job_path.mkdir(parents=True)
    with by_hand(tmp_path, modules=MODULES) as services, ExitStack() as stores:
        lay_over(services, deployment(plan))
        node = Node(services, stores)
        for job in ("backup", "restore"):
            variables = services.compose["services"][job]["environment"]
            variables[f"TRINITY_{job.upper()}_FOLDER"] = str(node.backups)
        node.job(*JOBS)
        node.start()
        with services.service("trainer"), services.service("explorer"):
            yield node


def planned(root: Path, name: str, steps: int = STEPS) -> ExperimentPlan:
    plan = experiment_plan(root, name=name, buffer={"total_steps": steps})
    plan.job_path.mkdir(parents=True, exist_ok=True)
    return plan


async def trained_to(node: Node, run: pb.Experiment, step: int) -> int:
    """The newest step, which is at least this one."""
    async with open_channel(node.by_hand.address("buffer")) as channel:
        stub: buffer_pb2_grpc.BufferServiceStub = buffer_pb2_grpc.BufferServiceStub(channel)
        request = buffer_pb2.WatchProgressRequest(tenant=run.tenant, experiment_id=run.id)
        async for answer in stub.WatchProgress(request):
            newest = max((event.step.step for event in answer.events), default=0)
            if newest >= step:
                return newest
    raise AssertionError("no answer")


def manifest_of(folder: Path) -> tuple[Manifest, bytes]:
    import hashlib

    content = (folder / MANIFEST_NAME).read_bytes()
    return Manifest.model_validate_json(content), hashlib.sha256(content).digest()


async def test_a_run_ends_in_the_calm_weights_though_its_database_went_back(
    node: Node, tmp_path: Path
) -> None:
    """The backup is taken while it trains; trainer and explorer work on through the restore."""
    calm = await run_to_end(node.synchronizer, planned(tmp_path, "calm"))
    plan = planned(tmp_path, "restored")
    run = await start_experiment(node.synchronizer, plan)
    await trained_to(node, run, 4)
    done = await asyncio.to_thread(node.by_hand.run, "backup")
    assert done.returncode == 0, done.stderr
    await trained_to(node, run, await trained_to(node, run, 4) + 4)
    node.lose_database()
    stage = plan.job_path / "stages" / "rft"
    names = [path.name for path in (*stage.glob("weights/v*"), *stage.glob("checkpoints/step-*"))]
    node.job("accounts", "restore", *JOBS)
    [(known,)] = node.query(f"SELECT recorded_step FROM buffer.stage WHERE experiment_id = '{run.id}'")
    assert isinstance(known, int)
    print("known", known, names)
    node.start()
    ended = await wait_until_ended(node.synchronizer, run.id)
    assert weights_of(ended) == weights_of(calm)
    print(sorted(str(p.relative_to(stage)) for p in stage.glob("*/*")), sorted(str(p.relative_to(stage)) for p in stage.glob("set-aside/*/*")))
