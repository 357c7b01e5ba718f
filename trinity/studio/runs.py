"""Finds runs below directories, and tells their state from their files alone."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from pathlib import Path

from trinity.errors import UserError
from trinity.run.launch.resume import PLAN_FILE
from trinity.run.local.addresses import stack_directory_of
from trinity.run.local.reaper import lock_owner_pid, viewer_pid
from trinity.run.local.run_file import read_running
from trinity.run.progress.summary import FINISHED, RunSummary
from trinity.run.runs import last_summary, run_directories, stopped_experiment
from trinity.studio.highlight import Highlight, of_summary

MAX_RUNS = 1_000
"""Most runs that are listed; the newest."""
RUN_DEPTH = 3
"""Folders between a root and its runs, at most."""
MAX_UNREADABLE = 5
"""Most unreadable folders of a place that are named."""


class RunDirectoryState(StrEnum):
    """The state of a run's directory."""

    RUNNING = "running"
    CHANGING = "starting or stopping"
    FAILED = "failed"
    STOPPED = "stopped"
    FINISHED = "finished"
    UNREADABLE = "unreadable"


_ORDER = tuple(RunDirectoryState)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEntry:
    """A run as the list shows it; fields without a record are None or empty."""

    directory: Path
    label: str
    state: RunDirectoryState
    began: datetime | None
    """None where it is not known."""
    experiment_id: str = ""
    """Empty for a run that was found by its directory."""
    tenant: str = ""
    stage: str = ""
    """The last stage with a checkpoint, or the first."""
    step: int | None = None
    total_steps: int | None = None
    reward: float | None = None
    highlight: Highlight | None = None
    reason: str = ""
    """Why it failed or cannot be read; may quote users' data."""

    @property
    def address(self) -> str:
        """Its name in the addresses of pages: the id of an experiment, or a directory."""
        return self.experiment_id or str(self.directory)


def is_run(directory: Path) -> bool:
    """Returns true if a run was started in the directory, as far as this user may see."""
    try:
        return (directory / PLAN_FILE).is_file()
    except OSError:
        return False


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Returns the directories of runs, at or below the places, newest first."""
    found: dict[Path, float] = {}
    for place in places:
        for directory in _runs_of(place):
            resolved = directory.resolve()
            found[resolved] = _began(resolved)
    return sorted(found, key=lambda directory: -found[directory])[:MAX_RUNS]


def _runs_of(place: Path) -> list[Path]:
    try:
        return [place] if is_run(place) else run_directories(place, PLAN_FILE)
    except OSError:
        return []  # `missing_places` says so


def missing_places(places: Iterable[Path]) -> Iterator[str]:
    """Yields a sentence for each place that is no directory, has no run or may not be read."""
    for place in places:
        if unreadable := list(islice(_unreadable(place, RUN_DEPTH), MAX_UNREADABLE)):
            for folder in unreadable:
                yield (
                    f"{folder} may not be read by the user who started Studio, so runs below it "
                    "are not shown: give that user the right to read it"
                )
        elif not place.is_dir():
            yield (
                f"{place} is not a directory: give `trinity studio` the directory of a run, or "
                "one below which there are runs"
            )
        elif not _runs_of(place):
            yield (
                f"no run was started below {place}: start one with `trinity run`, or on the page "
                "Configure"
            )


def _unreadable(folder: Path, depth: int) -> Iterator[Path]:
    """Yields folders at and below one that may not be listed or entered; not inside of runs."""
    try:
        with os.scandir(folder) as entries:
            below = [Path(entry.path) for entry in entries if entry.is_dir()]
        if (folder / PLAN_FILE).is_file():
            return
    except PermissionError:
        yield folder
        return
    except OSError:
        return
    if depth:
        for inner in below:
            yield from _unreadable(inner, depth - 1)


def list_runs(places: Iterable[Path]) -> list[RunEntry]:
    """Returns the runs, those that may need someone first, and the newest first among these."""
    entries = [describe_run(directory) for directory in find_runs(places)]
    return sorted(entries, key=lambda entry: _ORDER.index(entry.state))


def describe_run(directory: Path) -> RunEntry:
    """Returns the entry of one run; a directory that cannot be read has its reason in it."""
    began = datetime.fromtimestamp(_began(directory), UTC)
    try:
        experiment, summary = stopped_experiment(directory)
        state = run_state(directory)
    except (UserError, OSError) as error:
        return RunEntry(
            directory=directory,
            label="/".join(directory.parts[-2:]),
            state=RunDirectoryState.UNREADABLE,
            began=began,
            reason=str(error),
        )
    trained = [stage for stage in experiment.stages if stage.newest_checkpoint is not None]
    current = (trained or experiment.stages[:1])[-1]
    return RunEntry(
        directory=directory,
        label=experiment.label,
        state=state,
        began=began,
        stage=current.name,
        step=current.newest_checkpoint,
        total_steps=current.total_train_steps,
        highlight=of_summary(summary) if summary is not None else None,
        reward=_last_reward(summary),
        reason=experiment.reason if state is RunDirectoryState.FAILED else "",
    )


def run_state(directory: Path) -> RunDirectoryState:
    """Returns the state; a stopped run that is only viewed is stopped."""
    home = stack_directory_of(directory)
    is_viewed = viewer_pid(home) is not None
    if not is_viewed:
        try:
            if read_running(home) is not None:
                return RunDirectoryState.RUNNING
        except (OSError, ValueError, KeyError, TypeError):
            return RunDirectoryState.CHANGING
        if lock_owner_pid(home) is not None:
            return RunDirectoryState.CHANGING
    summary = last_summary(directory)
    if summary is None:
        return RunDirectoryState.STOPPED
    return RunDirectoryState.FINISHED if summary.state == FINISHED else RunDirectoryState.FAILED


def _began(directory: Path) -> float:
    try:
        return (directory / PLAN_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _last_reward(summary: RunSummary | None) -> float | None:
    rewards = [stage.rewards[-1] for stage in summary.stages if stage.rewards] if summary else []
    return rewards[-1] if rewards else None
