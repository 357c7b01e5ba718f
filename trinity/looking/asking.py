"""Queries to the query service whose answers come in many messages."""

from collections.abc import AsyncIterator

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub

STREAM_SECONDS = 24 * 3600.0
"""A whole run may be read slowly."""


async def samples(
    queries: QueryServiceStub,
    key: buffer_pb2.StageKey,
    wanted: query_pb2.ExperienceFilter,
    *,
    limit: int = 0,
    latest_first: bool = False,
    with_content: bool = False,
) -> AsyncIterator[query_pb2.ExperienceRecord]:
    """Yields samples one by one; at most a page of them is in memory."""
    request = query_pb2.ListExperiencesRequest(
        key=key,
        filter=wanted,
        limit=limit,
        latest_first=latest_first,
        with_content=with_content,
    )
    async for page in queries.ListExperiences(request, timeout=STREAM_SECONDS):
        for record in page.experiences:
            yield record


async def step_rows(
    queries: QueryServiceStub, key: buffer_pb2.StageKey, step: int
) -> tuple[query_pb2.StepHead, list[query_pb2.StepRow]]:
    """Returns a train step with the rows of its batch."""
    head, rows = query_pb2.StepHead(), []
    request = query_pb2.GetStepRequest(key=key, step=step)
    async for message in queries.GetStep(request, timeout=STREAM_SECONDS):
        if message.WhichOneof("part") == "head":
            head = message.head
        else:
            rows += list(message.rows.rows)
    return head, rows
