"""The buffer as somebody sees it who looks into it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from tests.integration.buffer.calls import CALL_SECONDS
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.api.v1.query_pb2_grpc import QueryServiceStub


@dataclass
class Looking:
    """Questions about one stage."""

    stub: QueryServiceStub
    key: buffer_pb2.StageKey
    cursor: str = ""
    """Of the last page that came."""

    @classmethod
    def on(cls, channel: grpc.aio.Channel, key: buffer_pb2.StageKey) -> "Looking":
        return cls(QueryServiceStub(channel), key)

    async def stages(self) -> list[pb.StoredStage]:
        request = pb.ListStagesRequest(tenant=self.key.tenant, experiment_id=self.key.experiment_id)
        answer: pb.ListStagesResponse = await self.stub.ListStages(request, timeout=CALL_SECONDS)
        return list(answer.stages)

    async def list(
        self,
        wanted: pb.ExperienceFilter | None = None,
        *,
        limit: int = 0,
        cursor: str = "",
        latest_first: bool = False,
        with_content: bool = False,
    ) -> "list[pb.ExperienceRecord]":
        request = pb.ListExperiencesRequest(
            key=self.key,
            filter=wanted,
            limit=limit,
            cursor=cursor,
            latest_first=latest_first,
            with_content=with_content,
        )
        found: list[pb.ExperienceRecord] = []
        async for page in self.stub.ListExperiences(request, timeout=CALL_SECONDS):
            found += page.experiences
            self.cursor = page.cursor
        return found

    async def session(self, assignment_id: str, run: int = 0) -> Sequence[SessionTurn]:
        request = pb.GetSessionRequest(key=self.key, assignment_id=assignment_id, run=run)
        stream = self.stub.GetSession(request, timeout=CALL_SECONDS)
        return [turn async for part in stream for turn in part.turns]

    async def until(self, count: int, wanted: pb.ExperienceFilter | None = None) -> None:
        """Wait until the filter lets so many samples through."""
        async with asyncio.timeout(CALL_SECONDS):
            while len(await self.list(wanted)) < count:  # noqa: ASYNC110  # it is another process
                await asyncio.sleep(0.01)

    async def get(self, experience_id: str) -> pb.GetExperienceResponse:
        request = pb.GetExperienceRequest(key=self.key, experience_id=experience_id)
        answer: pb.GetExperienceResponse = await self.stub.GetExperience(
            request, timeout=CALL_SECONDS
        )
        return answer

    async def step(self, step: int) -> tuple[pb.StepHead, Sequence[pb.StepRow]]:
        head = pb.StepHead()
        rows: list[pb.StepRow] = []
        request = pb.GetStepRequest(key=self.key, step=step)
        async for message in self.stub.GetStep(request, timeout=CALL_SECONDS):
            if message.WhichOneof("part") == "head":
                head = message.head
            else:
                rows += list(message.rows.rows)
        return head, rows

    async def exclude(
        self, wanted: pb.ExperienceFilter, reason: str, *, dry_run: bool = False
    ) -> pb.ExcludeExperiencesResponse:
        request = pb.ExcludeExperiencesRequest(
            key=self.key, filter=wanted, reason=reason, dry_run=dry_run
        )
        answer: pb.ExcludeExperiencesResponse = await self.stub.ExcludeExperiences(
            request, timeout=CALL_SECONDS
        )
        return answer

    async def include(
        self, wanted: pb.ExperienceFilter, *, dry_run: bool = False
    ) -> pb.IncludeExperiencesResponse:
        request = pb.IncludeExperiencesRequest(key=self.key, filter=wanted, dry_run=dry_run)
        answer: pb.IncludeExperiencesResponse = await self.stub.IncludeExperiences(
            request, timeout=CALL_SECONDS
        )
        return answer

    async def delete(
        self, wanted: pb.ExperienceFilter, reason: str, *, dry_run: bool = False
    ) -> pb.DeleteExperiencesResponse:
        request = pb.DeleteExperiencesRequest(
            key=self.key, filter=wanted, reason=reason, dry_run=dry_run
        )
        answer: pb.DeleteExperiencesResponse = await self.stub.DeleteExperiences(
            request, timeout=CALL_SECONDS
        )
        return answer

    async def population(self) -> pb.GetPopulationResponse:
        request = pb.GetPopulationRequest(key=self.key)
        answer: pb.GetPopulationResponse = await self.stub.GetPopulation(
            request, timeout=CALL_SECONDS
        )
        return answer

    async def task_scores(
        self,
        *,
        kind: buffer_pb2.AssignmentKind = buffer_pb2.ASSIGNMENT_KIND_TRAIN,
        metric: str = "",
        pass_score: float = 1.0,
        versions: Sequence[int] = (),
        max_draws: int = 0,
    ) -> tuple[pb.TaskScoresHead, Sequence[pb.TaskScores]]:
        request = pb.ListTaskScoresRequest(
            key=self.key,
            kind=kind,
            metric=metric,
            pass_score=pass_score,
            versions=versions,
            max_draws=max_draws,
        )
        head = pb.TaskScoresHead()
        tasks: Sequence[pb.TaskScores] = ()
        async for message in self.stub.ListTaskScores(request, timeout=CALL_SECONDS):
            if message.WhichOneof("part") == "head":
                head = message.head
            else:
                tasks = [*tasks, *message.page.tasks]
        return head, tasks
