"""Our explorer's own client in a separate process; only the runs are made up."""

import asyncio
import json
import sys
import time
import uuid
from collections import deque

from benchmarks.buffer.made import outcomes_of
from benchmarks.buffer.worker import serve
from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.delivery.outbox import CommitReportWatcher, Outbox
from services.explorer.delivery.publisher import NatsBroker, ResultPublisher
from services.explorer.types import (
    Assignment,
    AttemptResult,
    CommitOutcome,
    ResultReport,
    WorkGranted,
    attempt_result_to_proto,
)
from trinity.runtime.rpc.channel import open_channel
from trinity.types import StageKey

MAX_UNCONFIRMED = 4096
"""As the explorer's default."""
LEASE_SECONDS = 900.0
LEASED_AT_ONCE = 1_000
LOAD_TASKS = 128
"""With eight runs each they are a quarter of what may be unconfirmed."""


class LoadExplorer:
    """The calls that the benchmark makes of the explorer's child process."""

    def __init__(self, address: str, nats_url: str, producer: str) -> None:
        self._buffer = ExplorerBufferClient(open_channel(address), producer)
        self._broker = NatsBroker(nats_url)
        self._outbox = Outbox(time.monotonic)
        self._publisher = ResultPublisher(
            producer=producer,
            outbox=self._outbox,
            broker=self._broker,
            blobs=self._buffer,
        )
        self._commits = CommitReportWatcher(
            producer=producer, buffer=self._buffer, outbox=self._outbox
        )
        self._held: list[Assignment] = []
        self._outcomes: deque[AttemptResult] = deque()

    async def work(self) -> None:
        """Serve the benchmark while the client runs."""
        async with self._broker:
            await self._broker.connect()
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._publisher.publish_results()),
                    tasks.create_task(self._commits.follow_reports()),
                ]
                await serve(self)
                for task in beside:
                    task.cancel()

    async def lease(self, key: dict[str, str], rows: int, num_tokens: int) -> list[float]:
        """Lease work for so many experiences and make them; answers the seconds of each call."""
        stage = StageKey(**key)
        self._held, seconds = [], []
        self._outcomes.clear()
        while len(self._outcomes) < rows:
            began = time.perf_counter()
            answer = await self._lease(stage, LEASED_AT_ONCE)
            seconds.append(time.perf_counter() - began)
            self._held += answer.assignments
            for assignment in answer.assignments:
                self._outcomes.extend(outcomes_of(stage, assignment, num_tokens))
        return seconds

    async def lease_tasks(self, key: dict[str, str], count: int, calls: int) -> list[float]:
        """Lease `count` tasks so many times; answers the seconds of each time.

        Large tasks take several calls, since an answer is bounded in bytes.
        """
        stage = StageKey(**key)
        self._held, seconds = [], []
        for _ in range(calls):
            began, wanted = time.perf_counter(), len(self._held) + count
            while len(self._held) < wanted:
                answer = await self._lease(stage, wanted - len(self._held))
                self._held += answer.assignments
            seconds.append(time.perf_counter() - began)
        return seconds

    async def _lease(self, key: StageKey, count: int) -> WorkGranted:
        answer = await self._buffer.lease(
            key, count, LEASE_SECONDS, held=self._held, requires_exact_version=False
        )
        if not isinstance(answer, WorkGranted):
            raise RuntimeError(f"no work was granted: {answer}")
        return answer

    async def publish(self, count: int, batch: int) -> float:
        """Hand over so many, `batch` at a time; answers the seconds until all are stored."""
        outcomes = [self._outcomes.popleft() for _ in range(count)]
        began = time.perf_counter()
        reports = []
        for first in range(0, count, batch):
            await self._outbox.wait_fewer_than(MAX_UNCONFIRMED)
            for outcome in outcomes[first : first + batch]:
                reports.append(self._outbox.enqueue_result(attempt_result_to_proto(outcome)))
            await asyncio.sleep(0)
        _check(await asyncio.gather(*reports))
        return time.perf_counter() - began

    async def publish_each(self, count: int, outstanding: int) -> float:
        """One at a time by each of `outstanding` tasks, which await the report on it."""
        outcomes = [self._outcomes.popleft() for _ in range(count)]

        async def work() -> None:
            while outcomes:
                report = self._outbox.enqueue_result(attempt_result_to_proto(outcomes.pop()))
                _check([await report])

        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(outstanding):
                tasks.create_task(work())
        return time.perf_counter() - began

    async def load(self, key: dict[str, str], seconds: float, num_tokens: int) -> int:
        """Lease and publish as fast as it goes, for so long; answers how many were stored."""
        stage, count = StageKey(**key), 0
        deadline = time.monotonic() + seconds
        self._held = []
        while (left := deadline - time.monotonic()) > 0:
            answer = await self._buffer.lease(
                stage,
                LOAD_TASKS,
                LEASE_SECONDS,
                held=[],
                requires_exact_version=False,
                wait_seconds=left,
            )
            if isinstance(answer, WorkGranted):
                for assignment in answer.assignments:
                    self._outcomes.extend(outcomes_of(stage, assignment, num_tokens))
                some = len(self._outcomes)
                await self.publish(some, some)
                count += some
        return count


def _check(reports: list[ResultReport]) -> None:
    for report in reports:
        if report.outcome is not CommitOutcome.COMMITTED:
            raise RuntimeError(f"a result was not stored: {report}")


def main() -> None:
    asyncio.run(_main(**json.loads(sys.argv[1])))


async def _main(address: str, nats_url: str) -> None:
    await LoadExplorer(address, nats_url, str(uuid.uuid4())).work()


if __name__ == "__main__":
    main()
