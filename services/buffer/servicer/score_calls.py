"""RPC method of QueryService on how tasks were solved, version by version."""

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.buffer.domain.task_scores import Task, TaskDraw, TaskScores, task_scores
from services.buffer.servicer.common import Context, by_size
from services.buffer.servicer.convert import (
    check_max_items,
    parse_name,
    parse_stage_key,
    parse_text,
)
from services.buffer.servicer.samples import KINDS, MAX_FILTER_TEXT, MOST
from services.buffer.store.database import BufferDatabase
from services.buffer.store.sample_statistics import (
    DrawFilter,
    count_draws,
    draws_by_task,
    newest_draws,
    scores_of_runs,
)
from services.buffer.store.stages import get_stage
from trinity.api.v1 import query_pb2 as pb
from trinity.errors import InvalidRequest
from trinity.types import StageKey

MAX_DRAWS = 10_000
"""Drawings of tasks that one answer looks at, the newest: the samples of each are read."""
MAX_VERSIONS = 1_000
DRAWS_AT_ONCE = 500
"""Drawings in one transaction; other calls have their turn in between."""


@dataclass(frozen=True, kw_only=True)
class ScoreRpcs:
    """ListTaskScores."""

    database: BufferDatabase

    async def ListTaskScores(
        self, request: pb.ListTaskScoresRequest, _: Context
    ) -> AsyncIterator[pb.ListTaskScoresResponse]:
        """Streams the scores of tasks."""
        key, wanted = parse_stage_key(request.key), _parse_wanted(request)
        metric = _parse_metric(request.metric)
        if not math.isfinite(request.pass_score):
            raise InvalidRequest(f"pass_score is {request.pass_score}: give a finite number")
        if not 0 <= request.max_draws <= MAX_DRAWS:
            raise InvalidRequest(f"max_draws {request.max_draws} is not in 0..{MAX_DRAWS}")
        limit = request.max_draws or MAX_DRAWS
        async with self.database.transaction() as connection:
            await get_stage(connection, key)
            num_draws = await count_draws(connection, key, wanted)
            draws = await newest_draws(connection, key, wanted, limit=limit)
        scores: dict[str, list[float]] = {}
        for first in range(0, len(draws), DRAWS_AT_ONCE):
            ids = [draw.assignment_id for draw in draws[first : first + DRAWS_AT_ONCE]]
            async with self.database.transaction() as connection:
                scores |= await scores_of_runs(connection, key, ids, metric)
        found = task_scores(draws, scores, request.pass_score)
        drawn = await self._times_drawn(key, wanted, draws)
        head = pb.TaskScoresHead(num_draws=max(num_draws, len(draws)), num_draws_read=len(draws))
        yield pb.ListTaskScoresResponse(head=head)
        for page in _pages(found, drawn):
            yield pb.ListTaskScoresResponse(page=page)

    async def _times_drawn(
        self, key: StageKey, wanted: DrawFilter, draws: Iterable[TaskDraw]
    ) -> Mapping[Task, int]:
        tasks = {draw.task for draw in draws}
        async with self.database.transaction() as connection:
            return await draws_by_task(connection, key, wanted.kind, tasks)


def _parse_wanted(request: pb.ListTaskScoresRequest) -> DrawFilter:
    if request.kind not in KINDS:
        raise InvalidRequest(f"kind {request.kind}: there is no such kind")
    versions = check_max_items(request.versions, "versions", MAX_VERSIONS)
    if any(not 0 <= version <= MOST for version in versions):
        raise InvalidRequest("versions: they are numbers from 0 on")
    return DrawFilter(
        kind=KINDS[request.kind],
        taskset=parse_name(request.taskset, "taskset") if request.taskset else "",
        versions=tuple(versions),
    )


def _parse_metric(metric: str) -> str:
    if len(metric) > MAX_FILTER_TEXT:
        raise InvalidRequest(f"metric has more than {MAX_FILTER_TEXT} characters")
    return parse_text(metric, "metric")


def _pages(found: Sequence[TaskScores], drawn: Mapping[Task, int]) -> Iterator[pb.TaskScoresPage]:
    told = [_to_proto(scores, drawn.get(scores.task, 0)) for scores in found]
    for part in by_size(told, pb.TaskScores.ByteSize):
        yield pb.TaskScoresPage(tasks=part)


def _to_proto(scores: TaskScores, num_draws: int) -> pb.TaskScores:
    taskset, index = scores.task
    return pb.TaskScores(
        taskset=taskset,
        task_index=index,
        num_draws=num_draws,
        versions=[
            pb.VersionScore(
                version=version,
                num_runs=score.num_runs,
                num_scored=score.num_scored,
                num_passed=score.num_passed,
                mean=score.mean,
            )
            for version, score in scores.versions.items()
        ],
    )
