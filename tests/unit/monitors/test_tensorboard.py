"""TensorBoard's files."""

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.monitors.builders import names, setting, whole_points
from trinity.run.monitors.points import MetricPoint
from trinity.run.monitors.tensorboard import TensorBoardMonitor

LOSS = "actor/loss"
ACCURACY = "eval/held_out/accuracy/mean@4"


def shown(directory: Path, run: str, scalar: str) -> list[int]:
    """Steps at which a run shows a figure."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(directory / "tensorboard" / run)).Reload()
    return [point.step for point in read.Scalars(scalar)]


def event_files(directory: Path) -> list[Path]:
    return list(directory.rglob("*tfevents*"))


@contextlib.contextmanager
def full_at(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_resumed_run_shows_each_step_once_in_tensorboard(tmp_path: Path) -> None:
    for _ in range(2):
        monitor = TensorBoardMonitor(setting(tmp_path))
        monitor.write_points(whole_points())
        monitor.close()
    assert shown(tmp_path, "first/rft_trainer", LOSS) == [1, 2, 3]
    assert shown(tmp_path, "first/rft_explorer", ACCURACY) == [0, 2, 3]


def test_files_of_others_stay_in_the_directory(tmp_path: Path) -> None:
    own = tmp_path / "tensorboard" / "first" / "rft_trainer" / "notes.txt"
    own.parent.mkdir(parents=True)
    for foreign in (own, tmp_path / "tensorboard" / "events.out.tfevents.1"):
        foreign.write_text("somebody's")
    for name in ("first", "second"):
        shown_as = replace(setting(tmp_path), names=replace(names(), name=name))
        TensorBoardMonitor(shown_as).write_points(whole_points())
    for name in ("first", "second"):
        assert shown(tmp_path, f"{name}/rft_trainer", LOSS) == [1, 2, 3]
    assert own.read_text() == "somebody's"
    assert (tmp_path / "tensorboard" / "events.out.tfevents.1").exists()


def halves() -> tuple[list[MetricPoint], list[MetricPoint]]:
    points = whole_points()
    return points[: len(points) // 2], points[len(points) // 2 :]


@pytest.mark.parametrize("room", [0, 5, 40, 150, 400])
def test_each_step_is_shown_once_though_the_disk_was_full(tmp_path: Path, room: int) -> None:
    """Wherever it cuts off what is written."""
    monitor = TensorBoardMonitor(setting(tmp_path))
    before, after = halves()
    monitor.write_points(before)
    sizes = [file.stat().st_size for file in event_files(tmp_path)]
    with full_at(min(sizes) + room):
        for _ in range(2):
            with pytest.raises(OSError):
                monitor.write_points(after)
    monitor.write_points(after)
    monitor.write_points(after)
    monitor.close()
    assert shown(tmp_path, "first/rft_trainer", LOSS) == [1, 2, 3]
    assert shown(tmp_path, "first/rft_explorer", ACCURACY) == [0, 2, 3]


@pytest.mark.parametrize("room", [0, 10])
def test_a_disk_that_is_full_at_the_beginning_is_no_end(tmp_path: Path, room: int) -> None:
    monitor = TensorBoardMonitor(setting(tmp_path))
    with full_at(room):
        for _ in range(2):
            with pytest.raises(OSError):
                monitor.write_points(whole_points())
    monitor.write_points(whole_points())
    assert shown(tmp_path, "first/rft_trainer", LOSS) == [1, 2, 3]


def test_what_comes_is_shown_though_somebody_deleted_the_files(tmp_path: Path) -> None:
    monitor = TensorBoardMonitor(setting(tmp_path))
    before, after = halves()
    monitor.write_points(before)
    for file in event_files(tmp_path):
        file.unlink()
        file.parent.rmdir()
    monitor.write_points(after)
    assert shown(tmp_path, "first/rft_trainer", LOSS)[-1] == 3
