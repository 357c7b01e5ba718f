"""TensorBoard's files."""

from pathlib import Path

from tests.unit.monitors.builders import setting, whole_points
from trinity.monitors.tensorboard import TensorBoardMonitor


def test_a_resumed_run_shows_each_step_once_in_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        monitor = TensorBoardMonitor(setting(tmp_path))
        monitor.write(whole_points())
        monitor.close()
    runs = tmp_path / "tensorboard" / "first"
    trainer = EventAccumulator(str(runs / "rft_trainer")).Reload()
    assert [point.step for point in trainer.Scalars("actor/loss")] == [1, 2, 3]
    explorer = EventAccumulator(str(runs / "rft_explorer")).Reload()
    accuracy = explorer.Scalars("eval/held_out/accuracy/mean@4")
    assert [point.step for point in accuracy] == [0, 2, 3]
