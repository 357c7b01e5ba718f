"""RPC methods for data curation, and for statistics: distribution shift and scores of tasks."""

import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.buffer.domain.evaluation import SCORES
from services.buffer.domain.sample_statistics import (
    GeneratedSample,
    SamplePopulation,
    Task,
    TaskScores,
    distribution_shifts,
    task_scores,
)
from services.buffer.domain.stage import UNTRAINED, AssignmentKind, ExperienceState
from services.buffer.domain.tasks import SampleFilter
from services.buffer.operations.curation import (
    check_deletable,
    delete_experiences,
    exclude_experiences,
    include_experiences,
    was_excluded,
)
from services.buffer.operations.feedback import FeedbackResult, give_feedback
from services.buffer.operations.training import load_newest_population
from services.buffer.servicer.common import Context, by_size
from services.buffer.servicer.convert import (
    check_max_items,
    clean_reason,
    parse_name,
    parse_stage_key,
    parse_text,
    to_message,
)
from services.buffer.servicer.samples import (
    KINDS,
    MAX_FILTER_TEXT,
    MOST,
    SamplePage,
    SamplePages,
    count_to_proto,
    parse_feedback,
    parse_filter,
    with_reward,
)
from services.buffer.store.curation import Change, ChangeReason
from services.buffer.store.database import BufferDatabase
from services.buffer.store.experiences import StateCount
from services.buffer.store.reports import log_notice
from services.buffer.store.sample_statistics import (
    DrawFilter,
    count_draws,
    draws_by_task,
    newest_draws,
    scores_of_runs,
)
from services.buffer.store.stages import get_stage
from services.buffer.store.training import count_failed_runs
from trinity.api.v1 import query_pb2 as pb
from trinity.errors import InvalidRequest
from trinity.runtime.security.authorization import current_caller
from trinity.types import StageKey

MAX_DRAWS = 10_000
"""Drawings of tasks that one answer looks at, the newest: the samples of each are read."""
MAX_VERSIONS = 1_000
DRAWS_AT_ONCE = 500
"""Drawings in one transaction; other calls have their turn in between."""
MAX_REASONS = 10
FEEDBACK_AT_ONCE = 100
"""Most samples in one transaction, each read and written whole."""
Asked = pb.ExcludeExperiencesRequest | pb.DeleteExperiencesRequest


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
            stage = await get_stage(connection, key)
            num_draws = await count_draws(connection, key, wanted)
            draws = await newest_draws(connection, key, wanted, limit=limit)
        scores: dict[str, list[float]] = {}
        failed: dict[str, int] = {}
        for first in range(0, len(draws), DRAWS_AT_ONCE):
            ids = [draw.assignment_id for draw in draws[first : first + DRAWS_AT_ONCE]]
            async with self.database.transaction() as connection:
                scores |= await scores_of_runs(connection, key, ids, metric)
                if wanted.kind is AssignmentKind.EVAL and stage.failed_runs_count_zero:
                    failed |= await count_failed_runs(connection, key, ids)
        if (metric or "reward") in SCORES:
            scores |= {own: scores.get(own, []) + [0.0] * lost for own, lost in failed.items()}
        found = task_scores(draws, scores, request.pass_score)
        async with self.database.transaction() as connection:
            tasks = {draw.task for draw in draws}
            drawn = await draws_by_task(connection, key, wanted.kind, tasks)
        head = pb.TaskScoresHead(num_draws=max(num_draws, len(draws)), num_draws_read=len(draws))
        yield pb.ListTaskScoresResponse(head=head)
        for page in _pages(found, drawn):
            yield pb.ListTaskScoresResponse(page=page)


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
            to_message(pb.VersionScore, score, version=version, mean=score.mean)
            for version, score in scores.versions.items()
        ],
    )


@dataclass(frozen=True, kw_only=True)
class CurationRpcs:
    """ExcludeExperiences, IncludeExperiences, DeleteExperiences, GiveFeedback, GetPopulation."""

    database: BufferDatabase

    async def ExcludeExperiences(
        self, request: pb.ExcludeExperiencesRequest, _: Context
    ) -> pb.ExcludeExperiencesResponse:
        """Excludes samples from training."""
        key, wanted, why = _asked(request)
        done = pb.ExcludeExperiencesResponse()
        async for part in self._parts(key, wanted):
            done.num_batched += sum(row.state is ExperienceState.BATCHED for row in part.rows)
            if request.dry_run:
                done.num_excluded += sum(row.state in UNTRAINED for row in part.rows)
                continue
            async with self.database.transaction() as connection:
                done.num_excluded += await exclude_experiences(connection, key, part.rows, why)
        if not request.dry_run:
            await self._tell(key, Change.EXCLUDED, done.num_excluded, why)
        return done

    async def IncludeExperiences(
        self, request: pb.IncludeExperiencesRequest, _: Context
    ) -> pb.IncludeExperiencesResponse:
        """Includes excluded samples again."""
        key, wanted = _named(request)
        if wanted.states not in ((), (ExperienceState.EXCLUDED,)):
            raise InvalidRequest("filter: only excluded samples can be included: give no state")
        meant = wanted.states or (ExperienceState.EXCLUDED, ExperienceState.BATCHED)
        wanted = replace(wanted, states=meant)
        why = None if request.dry_run else _why(request.reason)
        done = pb.IncludeExperiencesResponse()
        async for part in self._parts(key, wanted):
            rows = [row for row in part.rows if was_excluded(row)]
            if not rows:
                continue
            async with self.database.transaction() as connection:
                included, too_late = await include_experiences(connection, key, rows, why=why)
            done.num_included += included
            done.num_too_late += too_late
        if why is not None:
            await self._tell(key, Change.INCLUDED, done.num_included, why)
        return done

    async def DeleteExperiences(
        self, request: pb.DeleteExperiencesRequest, _: Context
    ) -> pb.DeleteExperiencesResponse:
        """Deletes the content of matching samples, after checking that all may be deleted."""
        key, wanted, why = _asked(request)
        found, done = pb.DeleteExperiencesResponse(), pb.DeleteExperiencesResponse()
        async for part in self._parts(key, wanted):
            rows = [row for row in part.rows if row.state is not ExperienceState.DELETED]
            if not rows:
                continue
            found.num_deleted += len(rows)
            async with self.database.transaction() as connection:
                await check_deletable(connection, key, wanted.kind, rows)
        if request.dry_run:
            return found
        async for part in self._parts(key, wanted):
            async with self.database.transaction() as connection:
                deleted, size = await delete_experiences(
                    connection, key, wanted.kind, part.rows, why
                )
            done.num_deleted += deleted
            done.num_bytes += size
        await self._tell(key, Change.DELETED, done.num_deleted, why)
        return done

    async def _tell(self, key: StageKey, what: Change, number: int, why: ChangeReason) -> None:
        """Tells those who follow the experiment; each sample's own record stands by then."""
        if not number:
            return
        samples = "1 sample was" if number == 1 else f"{number:,} samples were"
        reason = f": {why.reason}" if why.reason else ""
        text = f"{samples} {what.value} by {why.by}{reason}"
        async with self.database.transaction() as connection:
            await log_notice(connection, key, text)

    async def _parts(self, key: StageKey, wanted: SampleFilter) -> AsyncIterator[SamplePage]:
        async with self.database.transaction() as connection:
            await get_stage(connection, key)
        pages = SamplePages(database=self.database, key=key, wanted=wanted, with_content=False)
        async for part in pages.read_pages():
            if part.rows:
                yield part

    async def GiveFeedback(
        self, request: pb.GiveFeedbackRequest, _: Context
    ) -> pb.GiveFeedbackResponse:
        """Sets rewards that samples wait for."""
        key = parse_stage_key(request.key)
        feedback = [
            parse_feedback(message) for message in check_max_items(request.feedback, "feedback")
        ]
        done, why = FeedbackResult(), _why(request.reason)
        for first in range(0, len(feedback), FEEDBACK_AT_ONCE):
            async with self.database.transaction() as connection:
                chunk = feedback[first : first + FEEDBACK_AT_ONCE]
                result = await give_feedback(connection, key, chunk, with_reward, why)
            done.num_set += result.num_set
            done.num_known += result.num_known
            done.refused += result.refused
        if why.reason:
            await self._tell(key, Change.REWARDED, done.num_set, why)
        refused = [
            pb.RefusedFeedback(experience_id=experience_id, reason=reason)
            for experience_id, reason in done.refused
        ]
        return to_message(pb.GiveFeedbackResponse, done, refused=refused)

    async def GetPopulation(
        self, request: pb.GetPopulationRequest, _: Context
    ) -> pb.GetPopulationResponse:
        """Compares the generated samples with the trained ones."""
        key = parse_stage_key(request.key)
        async with self.database.transaction() as connection:
            stage = await get_stage(connection, key)
            found = await load_newest_population(connection, stage)
        return pb.GetPopulationResponse() if found is None else _population(found)


def _why(reason: str) -> ChangeReason:
    """Returns the reason with the subject of the caller's token."""
    return ChangeReason(reason=clean_reason(reason), by=clean_reason(current_caller().subject))


def _asked(request: Asked) -> tuple[StageKey, SampleFilter, ChangeReason]:
    """Returns key, filter and reason.

    Raises: InvalidRequest when the filter or the reason is empty.
    """
    key, wanted = _named(request)
    why = _why(request.reason)
    if not why.reason:
        raise InvalidRequest("reason: say why; it is kept with the samples")
    return key, wanted, why


def _named(request: Asked | pb.IncludeExperiencesRequest) -> tuple[StageKey, SampleFilter]:
    """Returns key and filter.

    Raises: InvalidRequest when the filter is empty, because it would match everything.
    """
    wanted = parse_filter(request.filter)
    if wanted.is_empty:
        raise InvalidRequest("filter: give at least one condition; without any it names everything")
    return parse_stage_key(request.key), wanted


def _population(found: SamplePopulation) -> pb.GetPopulationResponse:
    return pb.GetPopulationResponse(
        first_explore_step=found.first_step,
        last_explore_step=found.last_step,
        num_runs=sum(found.runs_of.values()),
        num_generated=len(found.samples),
        num_trained=found.num_trained,
        comparisons=[
            to_message(pb.Comparison, shift, shift=shift.distance)
            for shift in distribution_shifts(found)
        ],
        left_out=[count_to_proto(count) for count in _left_out(found.samples)],
    )


def _left_out(samples: Sequence[GeneratedSample]) -> list[StateCount]:
    counted = Counter((sample.state, sample.reason) for sample in samples if not sample.is_trained)
    return [
        StateCount(state=ExperienceState(state), reason=reason, number=number)
        for (state, reason), number in counted.most_common(MAX_REASONS)
    ]
