"""Tables of samples of each evaluation, for monitors (`trainer.enable_preview`)."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan

logger = logging.getLogger(__name__)

MAX_SAMPLES = 16
MAX_TEXT_CHARS = 4_000
"""Limit for a prompt or a response; a longer one is cut, and says so."""
READ_SECONDS = 30.0
HASH_DIGITS = 12
COLUMNS = ("version", "task", "run", "reward", "prompt", "response", "images")
Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTable:
    """Samples of one evaluation; texts are the model's, and untrusted."""

    name: str
    rows: tuple[tuple[Cell, ...], ...]
    """One value for each of `COLUMNS`."""


@dataclass(slots=True, kw_only=True)
class PreviewReader:
    """Reads the samples of evaluations from the buffer.

    A table that cannot be read is left out and said once. Metrics wait for one `READ_SECONDS` at
    most.
    """

    queries: QueryServiceStub
    experiment_id: str
    tenant: str
    stages: frozenset[str]
    """Names of the stages with `trainer.enable_preview`."""
    say: Callable[[str], None]
    _has_said: bool = False

    async def table_of(self, event: buffer_pb2.ProgressEvent) -> SampleTable | None:
        """Returns the table of an event, if it is an evaluation whose samples are stored."""
        if event.WhichOneof("event") != "evaluation" or event.stage not in self.stages:
            return None
        done = event.evaluation
        try:
            rows = await self._rows(event)
        except grpc.aio.AioRpcError as error:
            logger.debug("samples are not read", exc_info=error)
            self._say_once(error)
            return None
        return SampleTable(name=f"eval/{done.taskset}/samples", rows=rows) if rows else None

    async def _rows(self, event: buffer_pb2.ProgressEvent) -> tuple[tuple[Cell, ...], ...]:
        done = event.evaluation
        request = query_pb2.ListExperiencesRequest(
            key=buffer_pb2.StageKey(
                tenant=self.tenant, experiment_id=self.experiment_id, stage=event.stage
            ),
            filter=query_pb2.ExperienceFilter(
                kind=buffer_pb2.ASSIGNMENT_KIND_EVAL,
                taskset=done.taskset,
                version_min=done.version,
                version_max=done.version,
            ),
            limit=MAX_SAMPLES,
            with_content=True,
        )
        answers = self.queries.ListExperiences(request, timeout=READ_SECONDS)
        found = [record async for answer in answers for record in answer.experiences]
        return tuple(_row(record, done.version) for record in found[:MAX_SAMPLES])

    def _say_once(self, error: grpc.aio.AioRpcError) -> None:
        if not self._has_said:
            self._has_said = True
            self.say(
                "the monitor gets no table of samples, as the buffer does not give them: "
                f"{error.details() or error.code().name}"
            )


def preview_reader(
    plan: ExperimentPlan,
    experiment_id: str,
    queries: QueryServiceStub | None,
    say: Callable[[str], None],
) -> PreviewReader | None:
    """Returns the reader of an experiment, or None if no stage wants tables."""
    stages = frozenset(stage.name for stage in plan.stages if stage.config.trainer.enable_preview)
    if queries is None or not stages:
        return None
    return PreviewReader(
        queries=queries, experiment_id=experiment_id, tenant=plan.tenant, stages=stages, say=say
    )


def _row(record: query_pb2.ExperienceRecord, version: int) -> tuple[Cell, ...]:
    content = record.content
    side = content.sequence if content.HasField("sequence") else content.pair.chosen
    return (
        version,
        record.task_index,
        record.eid.run,
        record.reward if record.HasField("reward") else None,
        _cut(side.prompt_text),
        _cut(side.response_text),
        "\n".join(
            f"{image.media_type}, {image.size:,} bytes, {image.sha256.hex()[:HASH_DIGITS]}"
            for image in content.blobs
        ),
    )


def _cut(text: str) -> str:
    left = len(text) - MAX_TEXT_CHARS
    return text if left <= 0 else f"{text[:MAX_TEXT_CHARS]} ... ({left:,} more characters)"
