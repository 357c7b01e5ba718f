"""TensorBoard files of a run, written from its progress events."""

import shutil
from pathlib import Path
from typing import Protocol

from trinity.api.v1 import buffer_pb2


class Monitor(Protocol):
    """Takes a run's figures as they come."""

    def event(self, event: buffer_pb2.ProgressEvent) -> None:
        """Take one event."""

    def close(self) -> None:
        """Write what is pending."""


class NoMonitor:
    """Keeps nothing."""

    def event(self, event: buffer_pb2.ProgressEvent) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Nothing is pending."""


class TensorBoardMonitor:
    """One TensorBoard run a stage under `directory`.

    A resumed run replays all events from the first, so old files are replaced, never continued:
    no step shows twice.
    """

    def __init__(self, directory: Path) -> None:
        # Imported here: tensorboard takes a second that `trinity status` should not pay.
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._directory = directory
        self._open = EventFileWriter
        self._writers: dict[str, EventFileWriter] = {}

    def event(self, event: buffer_pb2.ProgressEvent) -> None:
        """Write the event's figures at its step."""
        match event.WhichOneof("event"):
            case "batch":
                self._write(event, event.batch.step, dict(event.batch.metrics))
            case "step":
                self._write(event, event.step.step, dict(event.step.metrics))
            case "evaluation":
                done = event.evaluation
                values = {f"eval/{done.taskset}/{m.name}": m.mean for m in done.metrics}
                self._write(event, done.version, values)

    def close(self) -> None:
        """Flush and close the files."""
        for writer in self._writers.values():
            writer.close()

    def _write(self, event: buffer_pb2.ProgressEvent, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        writer = self._writers.get(event.stage)
        if writer is None:
            writer = self._writers[event.stage] = self._open(str(self._directory / event.stage))
        summary = Summary(
            value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        )
        writer.add_event(Event(wall_time=event.unix_millis / 1000, step=step, summary=summary))
