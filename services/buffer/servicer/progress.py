"""The progress log as a stream."""

from collections.abc import AsyncIterator

from services.buffer.servicer.convert import name_of, uuid_of
from services.buffer.servicer.parts import Context, Parts
from services.buffer.store.database import decode_numbers, progress_topic
from services.buffer.store.progress import LoggedEvent, load_events
from trinity.api.v1 import buffer_pb2 as pb

EVENTS_A_MESSAGE = 200
MESSAGES = {
    "opened": pb.StageOpened,
    "batch": pb.BatchComposed,
    "step": pb.StepTrained,
    "evaluation": pb.EvaluationDone,
    "samples": pb.Samples,
    "notice": pb.Notice,
}


class ProgressCalls(Parts):
    """WatchProgress."""

    async def WatchProgress(
        self, request: pb.WatchProgressRequest, _: Context
    ) -> AsyncIterator[pb.WatchProgressResponse]:
        """Streams past events, then new ones."""
        tenant = name_of(request.tenant, "tenant")
        experiment_id = uuid_of(request.experiment_id, "experiment_id")
        seen = request.after_event
        async for _change in self.poller.changes(progress_topic(tenant, experiment_id)):
            while True:
                async with self.database.transaction() as connection:
                    events = await load_events(
                        connection, tenant, experiment_id, seen, EVENTS_A_MESSAGE
                    )
                if not events:
                    break
                seen = events[-1].number
                yield pb.WatchProgressResponse(events=[_event(event) for event in events])


def _event(logged: LoggedEvent) -> pb.ProgressEvent:
    body = dict(logged.body)
    metrics = body.get("metrics")
    if isinstance(metrics, dict):
        body["metrics"] = decode_numbers(metrics)  # type: ignore[arg-type, assignment]
    body.pop("experience_ids", None)  # internal: finds texts to delete
    message = MESSAGES[logged.kind](**body)
    event = pb.ProgressEvent(
        number=logged.number, stage=logged.stage, unix_millis=logged.unix_millis
    )
    getattr(event, logged.kind).CopyFrom(message)
    return event
