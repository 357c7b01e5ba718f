"""Runs a workflow on a few tasks against an engine that stays, and shows the samples."""

import asyncio
import itertools
import json
import statistics
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from services.explorer.control.stage import WorkflowEnvironment
from services.explorer.debug.client import (
    DebugTokenizer,
    EngineConnection,
    RemoteEngine,
    is_answering,
    socket_path,
)
from services.explorer.engine.tokenizer import load_tokenizer
from services.explorer.engines import LoadedModel, StageModel, stage_models
from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.openai_api.tools import ResponseParsers, load_parsers
from services.explorer.rollout.runner import AttemptRunner, DeadlineTasks, RunTimeLimit
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.types import (
    Assignment,
    Attempt,
    AttemptResult,
    RolloutKind,
    WeightsId,
    WeightsRequirement,
)
from trinity.config.data_files import find_data_files
from trinity.config.data_rows import first_rows
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.data.codec import eid_to_proto
from trinity.data.samples import content_row
from trinity.errors import UserError
from trinity.rft.checks.parts import check_parts
from trinity.runtime.control_characters import ESCAPED
from trinity.runtime.threads import DaemonThreads, in_daemon_thread
from trinity.runtime.uuids import name_uuid
from trinity.types import EID, EXPERIENCE_NAMESPACE, Experience, JsonObject, Pair, StageKey
from trinity.types import Sequence as TokenSequence

MAX_TOKENS = 40
"""Tokens of a response that are listed; the output file has all."""
_KEEPS_LINES = {code: text for code, text in ESCAPED.items() if chr(code) not in "\n\t"}
Decode = Callable[[list[int]], str]
MAX_CALLS = 16
"""Calls of workflows that run at a time."""
FAILED, SUCCEEDED = 1, 0
WEIGHTS = WeightsId(version=0, incarnation=0)
NAMESPACE_ID = "00000000-0000-0000-0000-00000000deb0"
"""Stands in the place of an experiment's id."""


def transcript(result: AttemptResult, decode: Decode) -> Iterator[str]:
    """Yields the lines of one run."""
    assignment = result.attempt.assignment
    head = f"task {assignment.position} (row {assignment.task_index} of {assignment.taskset})"
    yield f"== {head}, run {result.attempt.run}: {result.duration_seconds:.2f} s"
    if result.failure:
        yield f"failed: {_safe(result.failure)}"
    for number, experience in enumerate(result.experiences):
        if len(result.experiences) > 1:
            yield f"-- experience {number + 1} of {len(result.experiences)}"
        yield from _experience(experience, decode)


def _experience(experience: Experience, decode: Decode) -> Iterator[str]:
    yield _reward(experience)
    if experience.info:
        yield f"info: {_safe(str(experience.info))}"
    body = experience.body
    if isinstance(body, Pair):
        yield from _block("prompt", body.chosen.prompt_text)
        for name, sequence in (("chosen", body.chosen), ("rejected", body.rejected)):
            yield from _sequence(name, sequence, decode)
        return
    yield from _block("prompt", body.prompt_text)
    yield from _sequence(f"response ({experience.finish_reason})", body, decode)


def _reward(experience: Experience) -> str:
    """Returns the reward with its parts and the metrics."""
    reward = "comes later" if experience.reward is None else f"{experience.reward:g}"
    named = experience.reward_parts | experience.metrics
    more = ", ".join(f"{name} {value:g}" for name, value in named.items())
    return _safe(f"reward {reward}" + (f" ({more})" if more else ""))


def _sequence(name: str, sequence: TokenSequence, decode: Decode) -> Iterator[str]:
    yield from _block(name, sequence.response_text)
    trained = int(sequence.action_mask.sum())
    yield (
        f"tokens: {sequence.prompt_length} of the prompt, {sequence.response_length} after it, "
        f"{trained} trained"
    )
    yield f"mask: {mask_runs(sequence)}"
    yield from _token_lines(sequence, decode)


def mask_runs(sequence: TokenSequence) -> str:
    """Returns the mask by its runs, as in `12 trained, 30 not, 8 trained`."""
    runs = [
        f"{len(list(group))} {'trained' if is_trained else 'not'}"
        for is_trained, group in itertools.groupby(bool(flag) for flag in sequence.action_mask)
    ]
    return ", ".join(runs) or "empty"


def _token_lines(sequence: TokenSequence, decode: Decode) -> Iterator[str]:
    tokens = sequence.tokens[sequence.prompt_length :]
    for place, token in enumerate(tokens[:MAX_TOKENS]):
        is_trained = bool(sequence.action_mask[place])
        logprob = f"{sequence.rollout_logprobs[place]:9.4f}" if is_trained else f"{'-':>9}"
        mark = "*" if is_trained else " "
        yield f"  {place:4d} {mark} {int(token):7d} {logprob}  {decode([int(token)])!r}"
    if len(tokens) > MAX_TOKENS:
        yield f"  ... and {len(tokens) - MAX_TOKENS} more"


def _block(name: str, text: str) -> Iterator[str]:
    yield f"{name}:"
    yield from textwrap.indent(_safe(text), "  ").splitlines() or ["  (empty)"]


def _safe(text: str) -> str:
    """Escapes what would control the terminal: texts are of models and data."""
    return text.translate(_KEEPS_LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """The tasks to run and the output file."""

    taskset: str = ""
    """Name; empty is the first one that is trained on."""
    first_row: int = 0
    num_tasks: int = 2
    repeat_times: int | None = None
    """Runs of a task; None is at most two, as the workflow is looked at."""
    output_file: str = ""
    """JSON lines, one for each experience; if empty, no file is written."""


async def try_workflow(plan: StagePlan, options: TrialOptions, seed: int, command: str) -> int:
    """Runs the workflow; returns 1 if a run failed.

    Raises: UserError when there is no engine, or the file names something that does not exist.
    """
    taskset = _taskset(plan, options.taskset)
    times = options.repeat_times or min(taskset.repeat_times, 2)
    plan = _repeated(plan, taskset.name, times)
    assignments = list(_assignments(taskset, options, times))
    path = socket_path(plan)
    if not await asyncio.to_thread(is_answering, path):
        raise UserError(
            f"no engine is up for {plan.model_path}: start one with {command}, and wait until it "
            "says how to go on"
        )
    WorkflowEnvironment().set(plan.config.explorer.env_vars)
    await in_daemon_thread(lambda: check_parts([plan]))
    async with _opened(plan, path) as models:
        trial = await _trial(plan, models, seed)
        with _output(options.output_file) as output:
            return await trial.run(assignments, output)


def _taskset(plan: StagePlan, name: str) -> ResolvedTaskset:
    known = {taskset.name: taskset for taskset in (*plan.tasksets, *plan.eval_tasksets)}
    if not known:
        raise UserError(f"stage `{plan.name}` has no taskset, so there is no workflow to try")
    if name and name not in known:
        raise UserError(f"there is no taskset {name!r}: give one of {', '.join(known)}")
    return known[name] if name else next(iter(known.values()))


def _repeated(plan: StagePlan, name: str, times: int) -> StagePlan:
    """Returns the plan with so many runs of a task."""

    def changed(tasksets: tuple[ResolvedTaskset, ...]) -> tuple[ResolvedTaskset, ...]:
        return tuple(
            taskset.model_copy(update={"repeat_times": times}) if taskset.name == name else taskset
            for taskset in tasksets
        )

    return plan.model_copy(
        update={"tasksets": changed(plan.tasksets), "eval_tasksets": changed(plan.eval_tasksets)}
    )


def _rows(taskset: ResolvedTaskset, first: int, count: int) -> list[JsonObject]:
    if taskset.storage_type != "file" or taskset.path is None or not Path(taskset.path).exists():
        raise UserError(
            f"the rows of taskset {taskset.name!r} are not in a file of this machine: give one "
            "with its columns, as in `buffer.explorer_input.taskset.path=rows.jsonl`"
        )
    files = find_data_files(taskset.path, taskset.split, taskset.subset_name)
    rows = [dict(row) for row in first_rows(files, first + count)][first:]
    if not rows:
        raise UserError(f"taskset {taskset.name!r} has no row {first}: give a lower --first-row")
    return rows


def _assignments(
    taskset: ResolvedTaskset, options: TrialOptions, times: int
) -> Iterator[Assignment]:
    rows = _rows(taskset, options.first_row, options.num_tasks)
    for position, row in enumerate(rows):
        index = options.first_row + position
        yield Assignment(
            id=name_uuid(EXPERIENCE_NAMESPACE, f"{taskset.name}/{index}"),
            kind=RolloutKind.EVAL if taskset.is_eval else RolloutKind.TRAIN,
            explore_step=1,
            position=position,
            taskset=taskset.name,
            task_index=index,
            task_json=json.dumps(row),
            runs=tuple(range(times)),
            first_attempt=0,
            lease_token="",
            required=WeightsRequirement(version=0, incarnation=0, exact_version=False),
        )


@asynccontextmanager
async def _opened(plan: StagePlan, path: Path) -> AsyncIterator[list[LoadedModel]]:
    """Yields the policy and the auxiliary models of the engine."""
    async with AsyncExitStack() as stack:
        connection = await asyncio.to_thread(EngineConnection, path)
        stack.push_async_callback(asyncio.to_thread, connection.close)
        models = []
        for number, model in enumerate(stage_models(plan)):
            tokenizer = await asyncio.to_thread(DebugTokenizer, connection, number)
            loaded = await _loaded(model, RemoteEngine(connection, number), tokenizer)
            stack.push_async_callback(loaded.close_model)
            models.append(loaded)
        yield models


async def _loaded(
    model: StageModel, engine: RemoteEngine, tokenizer: DebugTokenizer
) -> LoadedModel:
    parsers = await in_daemon_thread(lambda: _parsers(model))
    api = None
    if model.has_api:
        api = AttemptApiServer(
            model_path=model.path, rollout=model.rollout, tokenizer=tokenizer, parsers=parsers
        )
        await api.start_api()
    return LoadedModel(
        engine=engine, replicas=(engine,), tokenizer=tokenizer, parsers=parsers, api=api
    )


def _parsers(model: StageModel) -> ResponseParsers | None:
    """Loads parsers of tool calls and reasoning here, with the tokenizer that they need."""
    rollout = model.rollout
    is_parsed = rollout.enable_auto_tool_choice or rollout.reasoning_parser is not None
    if not (model.has_api and is_parsed) or model.external is not None:
        return None
    tokenizer = load_tokenizer(
        model.path, model.chat_template, template_kwargs=model.template_kwargs
    )
    return load_parsers(rollout, tokenizer)


class _Trial:
    """Runs tasks and shows each run when it ends."""

    def __init__(
        self, *, plan: StagePlan, runner: AttemptRunner, models: list[LoadedModel]
    ) -> None:
        self._key = StageKey(tenant="default", experiment_id=NAMESPACE_ID, stage=plan.name)
        self._runner = runner
        self._decode = models[0].tokenizer.decode
        self._turn = asyncio.Semaphore(MAX_CALLS)
        self._results: list[AttemptResult] = []

    async def run(self, assignments: Sequence[Assignment], output: IO[str] | None) -> int:
        """Runs all; returns 1 if a run failed."""
        async with asyncio.TaskGroup() as tasks:
            for assignment in assignments:
                for runs in self._calls(assignment):
                    tasks.create_task(self._call(assignment, runs, output))
        _say(self._summary())
        return FAILED if any(result.failure for result in self._results) else SUCCEEDED

    def _calls(self, assignment: Assignment) -> list[tuple[int, ...]]:
        if self._runner.runs_together(assignment):
            return [assignment.runs]
        return [(run,) for run in assignment.runs]

    async def _call(
        self, assignment: Assignment, runs: tuple[int, ...], output: IO[str] | None
    ) -> None:
        attempts = [
            Attempt(key=self._key, assignment=assignment, run=run, number=0) for run in runs
        ]
        async with self._turn:
            results = await self._runner.run_attempts(attempts, WEIGHTS)
        for result in results:
            _say(await asyncio.to_thread(_lines, result, self._decode))
            self._results.append(result)
            if output is not None:
                output.writelines(_output_lines(result))

    def _summary(self) -> Iterator[str]:
        made = [made for result in self._results for made in result.experiences]
        failed = sum(bool(result.failure) for result in self._results)
        yield f"{len(self._results)} runs, {failed} failed, {len(made)} experiences"
        rewards = [experience.reward for experience in made if experience.reward is not None]
        if rewards:
            spread = statistics.pstdev(rewards)
            yield f"rewards: mean {statistics.fmean(rewards):.4g}, standard deviation {spread:.4g}"


async def _trial(plan: StagePlan, models: list[LoadedModel], seed: int) -> _Trial:
    policy, *auxiliary = models
    make = partial(
        WorkflowFactory,
        plan=plan,
        seed=seed,
        generator=policy.engine,
        tokenizer=policy.tokenizer,
        api=policy.api,
        auxiliary=auxiliary,
    )
    runner = AttemptRunner(
        factory=await in_daemon_thread(make),
        engine=policy.engine,
        limit=RunTimeLimit(plan.config.explorer),
        threads=DaemonThreads(name="workflow", max_threads=MAX_CALLS),
        tasks=DeadlineTasks(),
        auxiliary=[model.engine for model in auxiliary],
    )
    return _Trial(plan=plan, runner=runner, models=models)


def _output(path: str) -> AbstractContextManager[IO[str] | None]:
    """Opens the file for experiences, if one is wanted.

    Raises: UserError when it cannot be written.
    """
    if not path:
        return nullcontext(None)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(path).open("x", encoding="utf-8")
    except FileExistsError:
        raise UserError(f"{path} exists: give another path for experiences") from None
    except OSError as error:
        raise UserError(f"experiences cannot be written to {path}: {error.strerror}") from error


def _lines(result: AttemptResult, decode: Decode) -> list[str]:
    return [*transcript(result, decode), ""]


def _say(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def _output_lines(result: AttemptResult) -> Iterator[str]:
    for experience in result.experiences:
        yield json.dumps(_output_row(result, experience)) + "\n"


def _place(eid: EID) -> JsonObject:
    """Returns an id as it is stored."""
    stored = eid_to_proto(eid)
    return {own.name: getattr(stored, own.name) for own in stored.DESCRIPTOR.fields}


def _output_row(result: AttemptResult, experience: Experience) -> JsonObject:
    assignment = result.attempt.assignment
    return {
        "taskset": assignment.taskset,
        "task_index": assignment.task_index,
        "eid": _place(experience.eid),
        "reward": experience.reward,
        "metrics": dict(experience.metrics),
        "finish_reason": experience.finish_reason.value,
        **content_row(experience),
    }
