"""A run from Python: started here or found anywhere, followed, looked into and told rewards.

import trinity

run = trinity.Run.from_config("addition.yaml", {"trainer.save_interval": 10})
run.start()
for report in run.follow():
    print(report.experiments[0].state)
run.experiences(["reward=0.5..1"]).head()
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, TypeAlias

from pydantic import JsonValue

from trinity.api.v1 import query_pb2
from trinity.client.background_loop import BackgroundLoop
from trinity.config.loading.load import load_config
from trinity.config.schema.experiment import stages_of
from trinity.errors import RunFailed, UserError
from trinity.run.conditions import parse_conditions
from trinity.run.contexts import Contexts
from trinity.run.exports import (
    Form,
    check_export,
    export_samples,
    flat_row,
    load_pyarrow,
    schema,
    stored_rows,
)
from trinity.run.feedback import RewardsGiven, give_feedback
from trinity.run.launch.start import StartedRun, last_lines, start_run
from trinity.run.places import Deployment, RunLocation
from trinity.run.progress.summary import FINISHED, SUMMARY_FILE, RunSummary, read_summary
from trinity.run.reports import StatusReport, ask_run, report_of
from trinity.run.runs import find_job_dir, launcher_pid, run_of
from trinity.run.stored import open_stored_experiment
from trinity.runtime.process.child_process import module_command

TableForm = Literal["pandas", "datasets", "arrow"]
Rewards: TypeAlias = Mapping[str, float] | Iterable[Mapping[str, Any]]
"""Rewards by the ids of samples; or rows with `id`, `reward` and perhaps `reward_parts`."""
Overrides: TypeAlias = Mapping[str, JsonValue]
"""Values by the dotted keys of a configuration."""
NO_OVERRIDES: Overrides = MappingProxyType({})
TRAINING = ("both", "train")
POLL_SECONDS = 0.5
FOLLOW_SECONDS = 2.0


class AsyncRun:
    """A run whose calls are awaited; `Run` has the same calls for other code.

    Calls raise UserError for a caller's mistake, RunFailed if the run or a service fails, and
    RpcError for a refusal.
    """

    def __init__(
        self,
        location: RunLocation,
        *,
        config: Path | None = None,
        overrides: Overrides = NO_OVERRIDES,
        options: Sequence[str] = (),
    ) -> None:
        self.location = location
        """The run's directory, or the services of a deployment."""
        self._config = config
        self._overrides = overrides
        self._options = options
        self._started: StartedRun | None = None

    @classmethod
    def from_config(
        cls,
        config: str | Path,
        overrides: Overrides = NO_OVERRIDES,
        plugin_dir: str | Path | None = None,
        adopted: str | Path | None = None,
    ) -> Self:
        """Returns the run of a YAML file on this machine; nothing is started.

        `overrides` are values by dotted key; `plugin_dir` has files of the user's own code,
        and `adopted` is a file of `trinity adopt`.
        """
        path = Path(config).resolve()
        given = {"--plugin-dir": plugin_dir, "--adopted": adopted}
        paths = {name: str(Path(path).resolve()) for name, path in given.items() if path}
        options = [word for pair in paths.items() for word in pair]
        location = run_of(load_config(path, overrides)).resolve()
        return cls(location, config=path, overrides=overrides, options=options)

    @classmethod
    def attach(cls, place: str | Path | Deployment, experiment: str = "") -> Self:
        """Returns a run that is there: by its directory, a context's name or a deployment."""
        if isinstance(place, str) and place in (contexts := Contexts.load()).contexts:
            return cls(contexts.named(place).deployment(experiment))
        if isinstance(place, Deployment):
            return cls(place)
        return cls(find_job_dir(None, Path(place)).resolve())

    async def start(self) -> None:
        """Starts the run, or goes on with it; returns once its services are up.

        It outlives this process; its output is in a file next to the configuration.
        """
        self._directory("a start")
        self._started = self._begin("run")
        while (code := self._started.process.poll()) is None:
            if await self._is_up():
                return
            await asyncio.sleep(POLL_SECONDS)
        _raise_unless_ended_well(self._started, code)

    async def _is_up(self) -> bool:
        try:
            return (await self.status()).is_running
        except (RunFailed, UserError):  # it is being started
            return False

    async def status(self) -> StatusReport:
        """Returns the state of the run, also of one that has stopped."""
        return report_of(self.location, await ask_run(self.location))

    async def follow(self, seconds: float = FOLLOW_SECONDS) -> AsyncIterator[StatusReport]:
        """Yields the state every `seconds`, until the run has ended or stopped."""
        while True:
            if (report := await self._report()) is not None:
                yield report
                if not report.is_running or all(e.state != "running" for e in report.experiments):
                    return
            await asyncio.sleep(seconds)

    async def _report(self) -> StatusReport | None:
        """Returns the state; None while a run of this machine is being started or stopped."""
        try:
            return await self.status()
        except (RunFailed, UserError):
            if isinstance(self.location, Deployment):
                raise
            if launcher_pid(self.location) is not None or self._is_starting():
                return None
        return await self.status()  # it has stopped meanwhile

    async def wait(self) -> RunSummary:
        """Waits for the end of the run; returns its results. Raises: RunFailed if it fails."""
        directory = self._directory("waiting for the results")
        await _until(lambda: launcher_pid(directory) is None and not self._is_starting())
        return _results(directory)

    async def stop(self) -> None:
        """Ends the run as Ctrl-C does: the step in hand is saved, and `start` goes on from it."""
        directory = self._directory("a stop")
        if (process := launcher_pid(directory)) is not None:
            os.kill(process, signal.SIGINT)
        await _until(lambda: launcher_pid(directory) is None and not self._is_starting())

    def _is_starting(self) -> bool:
        return self._started is not None and self._started.process.poll() is None

    async def experiences(
        self,
        conditions: Iterable[str] = (),
        *,
        stage: str | None = None,
        limit: int = 0,
        form: TableForm = "pandas",
    ) -> Any:
        """Returns stored samples as a data frame, a `datasets.Dataset` or a `pyarrow.Table`.

        `conditions` are those of `trinity view`, such as `reward=0.5..1`; 0 is no limit.
        """
        pyarrow, wanted = load_pyarrow(), parse_conditions(conditions)
        async with open_stored_experiment(self.location) as stored:
            rows = [flat_row(row) async for row in stored_rows(stored, stage, wanted, limit)]
        table = pyarrow.Table.from_pylist(rows, schema=schema(pyarrow))
        if form == "datasets":
            from datasets import Dataset

            return Dataset(table)
        return table.to_pandas() if form == "pandas" else table

    async def export(
        self,
        out: str | Path,
        conditions: Iterable[str] = (),
        *,
        stage: str | None = None,
        form: Form | None = None,
    ) -> int:
        """Writes samples as `trinity export` does; returns their number."""
        wanted = check_export(Path(out), conditions)
        return await export_samples(self.location, Path(out), wanted, stage=stage, form=form)

    async def feedback(
        self, rewards: Rewards, *, stage: str | None = None, reason: str = ""
    ) -> RewardsGiven:
        """Gives samples the rewards that they wait for; the result names those that are refused."""
        if isinstance(rewards, Mapping):
            rewards = [{"id": sample, "reward": reward} for sample, reward in rewards.items()]
        given = [
            query_pb2.Feedback(
                experience_id=row["id"],
                reward=row["reward"],
                reward_parts=row.get("reward_parts") or {},
            )
            for row in rewards
        ]
        return await give_feedback(self.location, given, stage=stage, reason=reason)

    async def evaluate(self, overrides: Overrides = NO_OVERRIDES) -> RunSummary:
        """Evaluates the checkpoints of the run, or its model, as `mode: bench` does."""
        return await self._to_end("run", _words({self._mode_key(): "bench", **overrides}))

    def _mode_key(self) -> str:
        """Returns the key of the mode of the last stage that trains."""
        config = load_config(self._file(), self._overrides)
        stages = [stage.index for stage in stages_of(config) if stage.config.mode in TRAINING]
        return f"stages[{stages[-1]}].mode" if config.stages and stages else "mode"

    async def retrain(
        self, first: int, last: int, *, stage: str | None = None, name: str | None = None
    ) -> RunSummary:
        """Trains again on the stored batches of these steps, as `trinity retrain` does."""
        if self._overrides:
            raise UserError("training again takes the file as it is: write the overrides into it")
        options = {"--steps": f"{first}..{last}", "--stage": stage, "--name": name}
        words = [word for option, value in options.items() if value for word in (option, value)]
        return await self._to_end("retrain", words)

    async def _to_end(self, command: str, words: Sequence[str]) -> RunSummary:
        """Runs a command; returns the results in the directory that it made."""
        directory = self._directory(f"`trinity {command}`")
        before = _other_results(directory)
        started = self._begin(command, *words)
        await _until(lambda: started.process.poll() is not None)
        _raise_unless_ended_well(started, started.process.returncode)
        after = _other_results(directory)
        changed = [path for path, at in after.items() if before.get(path) != at]
        return _results(max(changed or after, key=lambda path: after[path]))

    def _begin(self, command: str, *words: str) -> StartedRun:
        given = [*self._options, *words, *_words(self._overrides)]
        program = module_command("trinity", command, "--config", str(self._file()), *given)
        return start_run(self._file(), program)

    def _file(self) -> Path:
        if self._config is None:
            raise UserError(f"{self.location} was attached: `from_config` knows how to start it")
        return self._config

    def _directory(self, what: str) -> Path:
        if isinstance(self.location, Deployment):
            raise UserError(f"{what} is for runs of this machine, and this is one of a deployment")
        return self.location


class Run:
    """The calls of `AsyncRun` for code that does not await, also in a notebook."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run
        self._loop = BackgroundLoop()

    @classmethod
    def from_config(
        cls,
        config: str | Path,
        overrides: Overrides = NO_OVERRIDES,
        plugin_dir: str | Path | None = None,
        adopted: str | Path | None = None,
    ) -> Self:
        """Returns the run of a YAML file on this machine; nothing is started."""
        return cls(AsyncRun.from_config(config, overrides, plugin_dir, adopted))

    @classmethod
    def attach(cls, place: str | Path | Deployment, experiment: str = "") -> Self:
        """Returns a run that is there: by its directory, a context's name or a deployment."""
        return cls(AsyncRun.attach(place, experiment))

    @property
    def location(self) -> RunLocation:
        """The run's directory, or the services of a deployment."""
        return self._run.location

    def start(self) -> None:
        """Starts the run, or goes on with it; it outlives this process."""
        self._loop.wait_for(self._run.start())

    def status(self) -> StatusReport:
        """Returns the state of the run, also of one that has stopped."""
        return self._loop.wait_for(self._run.status())

    def follow(self, seconds: float = FOLLOW_SECONDS) -> Iterator[StatusReport]:
        """Yields the state every `seconds`, until the run has ended or stopped."""
        reports = self._run.follow(seconds)
        while (report := self._loop.wait_for(_next(reports))) is not None:
            yield report

    def wait(self) -> RunSummary:
        """Waits for the end of the run; returns its results. Raises: RunFailed if it fails."""
        return self._loop.wait_for(self._run.wait())

    def stop(self) -> None:
        """Ends the run as Ctrl-C does: the step in hand is saved, and `start` goes on from it."""
        self._loop.wait_for(self._run.stop())

    def experiences(
        self,
        conditions: Iterable[str] = (),
        *,
        stage: str | None = None,
        limit: int = 0,
        form: TableForm = "pandas",
    ) -> Any:
        """Returns stored samples as a data frame, a `datasets.Dataset` or a `pyarrow.Table`."""
        call = self._run.experiences(conditions, stage=stage, limit=limit, form=form)
        return self._loop.wait_for(call)

    def export(
        self,
        out: str | Path,
        conditions: Iterable[str] = (),
        *,
        stage: str | None = None,
        form: Form | None = None,
    ) -> int:
        """Writes samples as `trinity export` does; returns their number."""
        return self._loop.wait_for(self._run.export(out, conditions, stage=stage, form=form))

    def feedback(
        self, rewards: Rewards, *, stage: str | None = None, reason: str = ""
    ) -> RewardsGiven:
        """Gives samples the rewards that they wait for; the result names those that are refused."""
        return self._loop.wait_for(self._run.feedback(rewards, stage=stage, reason=reason))

    def evaluate(self, overrides: Overrides = NO_OVERRIDES) -> RunSummary:
        """Evaluates the checkpoints of the run, or its model, as `mode: bench` does."""
        return self._loop.wait_for(self._run.evaluate(overrides))

    def retrain(
        self, first: int, last: int, *, stage: str | None = None, name: str | None = None
    ) -> RunSummary:
        """Trains again on the stored batches of these steps, as `trinity retrain` does."""
        return self._loop.wait_for(self._run.retrain(first, last, stage=stage, name=name))


async def _until(is_over: Callable[[], bool]) -> None:
    while not is_over():  # noqa: ASYNC110 - another process has no event
        await asyncio.sleep(POLL_SECONDS)


async def _next(reports: AsyncIterator[StatusReport]) -> StatusReport | None:
    return await anext(reports, None)


def _words(overrides: Overrides) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]


def _results(directory: Path) -> RunSummary:
    """Raises: RunFailed if the run was stopped, or has failed."""
    summary = read_summary(directory)
    if summary is None or summary.state != FINISHED:
        why = "it was stopped" if summary is None else summary.reason
        raise RunFailed(f"the run in {directory} has no results: {why}")
    return summary


def _other_results(directory: Path) -> dict[Path, int]:
    """Returns directories with results of evaluations and of further training, with their times."""
    inside = (directory.glob(f"{folder}/*/{SUMMARY_FILE}") for folder in ("bench", "retrained"))
    beside = directory.parent.glob(f"{directory.name}-bench-*/{SUMMARY_FILE}")
    return {path.parent: path.stat().st_mtime_ns for path in chain(*inside, beside)}


def _raise_unless_ended_well(started: StartedRun, code: int) -> None:
    if code:
        raise RunFailed(f"it ended with {code}: {last_lines(started.log)}")
