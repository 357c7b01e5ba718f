"""The compose file's processes start, on its own variables, secrets and broker configuration."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.js.errors import Error as JetStreamError

from tests.support.deployed.by_hand import ByHand, by_hand
from trinity.api.v1 import synchronizer_pb2, synchronizer_pb2_grpc
from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.errors import RunFailed, UserError
from trinity.run.deploy.submission import ExperimentSubmission, cancel_experiment
from trinity.run.launch.stored_runs import find_experiment
from trinity.run.progress.lines import LineReporter
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.broker import inbox_of

ADDITION = Path(__file__).parents[3] / "examples" / "addition" / "addition.yaml"
JOBS = ("accounts", "migrate-synchronizer", "migrate-buffer")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByHand]:
    """Accounts, migrations, then the two services that the others need."""
    with by_hand(tmp_path_factory.mktemp("node")) as node:
        for job in JOBS:
            done = node.run(job)
            assert done.returncode == 0, done.stderr
        with node.service("synchronizer"), node.service("buffer"):
            node.wait_ready("synchronizer")
            node.wait_ready("buffer")
            yield node


def test_the_jobs_may_be_run_again(node: ByHand) -> None:
    for job in JOBS:
        done = node.run(job)
        assert done.returncode == 0, done.stderr


def test_a_service_that_is_not_there_is_not_healthy(node: ByHand) -> None:
    answer = node.probe("trainer")
    assert answer.returncode == 1
    assert "UNAVAILABLE" in answer.stderr


async def test_an_explorer_may_publish_results_and_nothing_else(node: ByHand) -> None:
    """As `nats/users.conf` of the secrets says."""
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    url = (node.secrets / "explorer" / "nats-url").read_text()
    client = await nats.connect(url, error_cb=note, inbox_prefix=inbox_of("explorer").encode())
    try:
        stream = await client.jetstream().publish("trinity.runs.t.e.s", b"no result")
        assert stream.stream == "TRINITY_RUNS"
        with pytest.raises((JetStreamError, nats.errors.Error, TimeoutError)):
            await client.jetstream(timeout=1.0).purge_stream("TRINITY_RUNS")
        await client.flush()
        assert any("permissions violation" in text.lower() for text in refused)
    finally:
        await client.close()


class Noting:
    """A reporter that can be waited for."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str] = asyncio.Queue()
        self._reporter = LineReporter(self.lines.put_nowait)

    def __call__(self, _: str) -> LineReporter:
        return self._reporter

    async def until(self, words: str) -> None:
        async with asyncio.timeout(30):
            while words not in await self.lines.get():
                pass


async def test_a_submitted_experiment_is_followed_to_its_end(
    node: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a second one, for whom nothing begins anew."""
    plan = plan_experiment(load_config(ADDITION))
    submission = ExperimentSubmission(
        plan=plan, synchronizer=node.address("synchronizer"), buffer=node.address("buffer")
    )
    following = asyncio.create_task(submission.submit_and_follow())
    async with open_channel(node.address("synchronizer")) as channel:
        synchronizer = synchronizer_pb2_grpc.SynchronizerServiceStub(channel)
        watched = synchronizer.WatchExperiments(synchronizer_pb2.WatchExperimentsRequest())
        async with asyncio.timeout(30):
            async for answer in watched:
                if answer.experiments:
                    break
        (experiment,) = answer.experiments
        assert experiment.label == plan.label
        noting = Noting()
        monkeypatch.setattr("trinity.run.deploy.submission.make_reporter", noting)
        following_too = asyncio.create_task(submission.submit_and_follow())
        await noting.until(f"{plan.label} goes on as {experiment.id}")
        found = await find_experiment(synchronizer, plan.tenant, plan.label)
        assert found is not None
        assert found.start_count == 1
    known = await cancel_experiment(plan, node.address("synchronizer"), "the test has seen enough")
    assert known == experiment.id
    for one in (following, following_too):
        with pytest.raises(RunFailed, match="did not finish: the test has seen enough"):
            async with asyncio.timeout(60):
                await one
    with pytest.raises(UserError, match="was cancelled before: the test has seen enough"):
        await cancel_experiment(plan, node.address("synchronizer"), "again")
