"""Exports runs to TensorBoard, in event files that survive failed writes."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trinity.run.monitors.monitor import MonitorContext
from trinity.run.monitors.points import MetricPoint, MonitorRun, by_series
from trinity.run.monitors.preview import COLUMNS, Cell, SampleTable

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary


PREFIX = "events.out.tfevents."
"""The prefix by which TensorBoard recognizes its files."""
FORMAT = "brain.Event:2"
FOLDER = "tensorboard"


class EventFile:
    """Writes each point once, also after failed writes.

    What a failed write left is truncated before the next, and points that are already in the file
    are skipped. TensorBoard's own writer stops for good at its first error.
    """

    def __init__(self, directory: Path) -> None:
        name = f"{PREFIX}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._path = directory / name
        self._size = 0
        self._last_event = 0

    def append_points(self, points: Sequence[MetricPoint]) -> None:
        """Adds points of one series, in the order of their events: all of them, or an error."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        new = [point for point in points if point.event > self._last_event]
        if not new:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # The file may have been deleted or truncated by others.
            size = min(self._size, file.tell())
            file.truncate(size)
            records = RecordWriter(file)
            if not size:
                records.write(_beginning().SerializeToString())
            for point in new:
                records.write(_event(point).SerializeToString())
            file.flush()
            size = file.tell()
        self._size, self._last_event = size, new[-1].event


def _beginning() -> "Event":
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time.time(), file_version=FORMAT)


def _event(point: MetricPoint) -> "Event":
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in point.figures.items()]
    if point.table is not None:
        values.append(_table(point.table))
    return Event(wall_time=point.unix_millis / 1000, step=point.step, summary=Summary(value=values))


def _table(table: SampleTable) -> "Summary.Value":
    """Returns a table of texts, as TensorBoard's page "Text" shows it.

    It reads cells as Markdown, so each stands there as code, indented by four blanks.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    cells = [*COLUMNS, *(_as_code(cell) for row in table.rows for cell in row)]
    sizes = (1 + len(table.rows), len(COLUMNS))
    return Summary.Value(
        tag=table.name,
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(
            dtype=DT_STRING,
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes]),
            string_val=[cell.encode(errors="replace") for cell in cells],
        ),
    )


def _as_code(cell: Cell) -> str:
    text = "" if cell is None else str(cell)
    return "\n".join(f"    {line}" for line in text.splitlines())


class TensorBoardMonitor:
    """Writes event files; old files of its runs are replaced, never continued.

    Every reader starts with the first event. Other files in the directory are not touched.
    """

    def __init__(self, setting: MonitorContext) -> None:
        self._directory = setting.directory / FOLDER
        self._names = setting.names
        self._files: dict[MonitorRun, EventFile] = {}

    def write_points(self, points: Sequence[MetricPoint]) -> None:
        """Adds the points and flushes them."""
        for series, found in by_series(points):
            self._file(series).append_points(found)

    def close(self) -> None:
        """Has no effect, as `write_points` flushes its data."""

    def _file(self, series: MonitorRun) -> EventFile:
        if series not in self._files:
            directory = self._directory / self._names.name_of(series)
            for old in directory.glob(f"{PREFIX}*"):
                old.unlink(missing_ok=True)
            self._files[series] = EventFile(directory)
        return self._files[series]
