"""TensorBoard files of an experiment: one directory per run."""

from collections.abc import Sequence

from trinity.monitors.event_file import PREFIX, EventFile
from trinity.monitors.monitor import Setting
from trinity.monitors.points import Point, Series, by_series

FOLDER = "tensorboard"


class TensorBoardMonitor:
    """Writes event files; old files of its runs are replaced, never continued.

    Every reader starts with the first event. Other files in the directory are not touched.
    """

    def __init__(self, setting: Setting) -> None:
        self._directory = setting.directory / FOLDER
        self._names = setting.names
        self._files: dict[Series, EventFile] = {}

    def write(self, points: Sequence[Point]) -> None:
        """Adds the points and flushes them."""
        for series, found in by_series(points):
            self._file(series).write(found)

    def close(self) -> None:
        """Does nothing: each call writes what it is given."""

    def _file(self, series: Series) -> EventFile:
        if series not in self._files:
            directory = self._directory / self._names.name_of(series)
            for old in directory.glob(f"{PREFIX}*"):
                old.unlink(missing_ok=True)
            self._files[series] = EventFile(directory)
        return self._files[series]
