"""TensorBoard files of an experiment: a directory a run."""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trinity.monitors.monitor import Setting
from trinity.monitors.points import Point, Series

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

FOLDER = "tensorboard"


class TensorBoardMonitor:
    """Old files are replaced, never continued: every reader begins with the first event."""

    def __init__(self, setting: Setting) -> None:
        self._directory = setting.directory / FOLDER
        self._names = setting.names
        self._is_cleared = False
        self._writers: dict[Series, EventFileWriter] = {}

    def write(self, points: Sequence[Point]) -> None:
        """Add the points, and flush: whoever watches sees them."""
        # Imported here: tensorboard takes a second that `trinity status` should not pay.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [
                Summary.Value(tag=name, simple_value=value) for name, value in point.figures.items()
            ]
            self._writer(point.series).add_event(
                Event(
                    wall_time=point.unix_millis / 1000,
                    step=point.step,
                    summary=Summary(value=values),
                )
            )
        for series in {point.series for point in points}:
            self._writers[series].flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _writer(self, series: Series) -> "EventFileWriter":
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if not self._is_cleared:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._is_cleared = True
        if series not in self._writers:
            directory = self._directory / self._names.name_of(series)
            directory.mkdir(parents=True)
            self._writers[series] = EventFileWriter(str(directory))
        return self._writers[series]
