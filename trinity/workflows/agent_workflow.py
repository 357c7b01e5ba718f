"""Runs an agent that is a program: its calls of the model, over HTTP, are those of the run."""

import asyncio
import contextlib
import json
import math
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from trinity.config.model_code_policy import agent_commands_are_allowed, check_agent_commands
from trinity.errors import UserError
from trinity.plugins import plugin_dirs_from_environment
from trinity.runtime.process.child_process import OWN_IDENTITY, kill_marked
from trinity.runtime.process.sandbox import Sandbox, SandboxSpec, open_sandbox
from trinity.types import Experience, JsonValue
from trinity.workflows.answers import close_session
from trinity.workflows.rubric_judge_workflow import RubricJudgeWorkflow
from trinity.workflows.samples import rewarded
from trinity.workflows.sandbox_tools import sandbox_spec
from trinity.workflows.workflow import Arguments, Workflow

AGENT = "agent"
"""The workflow's name."""
KEPT_BYTES = 8192
"""Of what an agent prints: its end."""
SHOWN_CHARACTERS = 500
SHOWN_COMMAND = 120
MOST_SECONDS = 7 * 86_400.0
"""Of a command in a sandbox: `explorer.max_timeout` ends it earlier."""
DRAIN_SECONDS = 1.0
"""Time to read the rest of the output of a command that has ended."""
SAME_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV")
"""Variables that an agent shares with the explorer, whose other ones may be secrets."""
PROMPT = "{prompt}"
FOLDER_VARIABLE = "TRINITY_AGENT_FOLDER"
Redact = Callable[[str], str]


class AgentWorkflow(RubricJudgeWorkflow):
    """Starts `command` for each run, waits for its end, and scores its last answer.

    The command is a list of words, or a text that is split as a shell does; `{prompt}` in a word is
    the task's prompt, and a word that names a file below the folder where the run was started
    becomes its path. It runs in an empty folder that is removed afterwards. The address and
    key of the run are in `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and for Anthropic's clients in
    `ANTHROPIC_BASE_URL` and `ANTHROPIC_API_KEY`; the model's name is in `TRINITY_MODEL`, the prompt
    in `TRINITY_PROMPT`, the row without its truth in the file `task.json`. `environment` adds
    variables. After `max_calls` answers, or answers of `max_tokens` tokens together, the model
    answers no more.

    With `sandbox: true` the commands run in a sandbox: they see the programs of this machine, the
    files that words name by a relative path or in a plug-in folder, and a folder of the run, and
    reach no address but the run's. A section in place of `true` may name `root`, `image`,
    `memory_bytes`, `disk_bytes` and `max_processes`.

    With `reward_command`, started in the same folder with the row in `row.json`, the reward is the
    number in its last line. With `rubric_judge: true` the first auxiliary model grades the last
    answer, as `rubric_judge_workflow` does. Otherwise the taskset's reward scores it.
    """

    keeps_history = True
    gives_several_samples = True
    usual_args: ClassVar[Mapping[str, JsonValue]] = {
        "command": None,
        "reward_command": None,
        "rubric_judge": False,
        "environment": {},
        "max_calls": 100,
        "max_tokens": None,
        "sandbox": False,
    }
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)

    async def run_async(self) -> list[Experience]:
        """Returns a sample for each path of calls that continue one another.

        Raises: UserError for arguments that are not right or an agent that asked nothing,
            AgentFailed for one that ended otherwise than by itself.
        """
        arguments = Arguments(self)
        sandbox = self._sandbox(arguments)
        shown: list[str] = []
        command = self._words(arguments, "command", shown)
        judge = self._words(arguments, "reward_command", shown)
        if not command:
            raise UserError(f"{self._where}.command is missing: give the command of the agent")
        grader = (self._judge(), self._criteria()) if arguments.boolean("rubric_judge") else None
        if judge and grader:
            raise UserError(f"{self._where}: give one of `reward_command` and `rubric_judge`")
        self.model.max_answers = arguments.positive_int("max_calls")
        if arguments.value("max_tokens") is not None:
            self.model.max_answered_tokens = arguments.positive_int("max_tokens")
        environment = self._environment(arguments)
        redact = self.model.api_access.redacted
        async with _opened(sandbox and replace(sandbox, readable=tuple(shown)), redact) as place:
            row = {k: v for k, v in self.task.raw_task.items() if k != self._truth_key}
            await place.write("task.json", json.dumps(row, default=str).encode())
            said = await place.finish(command, environment)
            turns = self.model.session_turns
            if not turns:
                raise UserError(
                    f"the agent {_shown(command)} asked the model nothing: let it ask at "
                    f"OPENAI_BASE_URL or ANTHROPIC_BASE_URL{_quoted(said)}"
                )
            closed = close_session(turns)
            last = closed.last
            if judge:
                row = self.task.raw_task
                await place.write("row.json", json.dumps(row, default=str).encode())
                reward = _number(judge, await place.finish(judge, environment))
                last.reward_parts = {"reward_command": reward}
            elif grader:
                self._set_grade(last, await self._grade(*grader, last))
            else:
                await self._score(last, self._reward())
        return rewarded(closed.samples, last.reward_parts, {**last.metrics, **closed.counts})

    @property
    def _where(self) -> str:
        return f"taskset {self.task.taskset!r}: workflow_args"

    @property
    def _truth_key(self) -> str:
        return str(self.task.format_args.response_key)

    def _sandbox(self, arguments: Arguments) -> SandboxSpec | None:
        given = arguments.value("sandbox")
        if given is False or given is None:
            check_agent_commands()
            return None
        spec = sandbox_spec(given, f"{self._where}.sandbox")
        return replace(spec, address=urlsplit(self.model.api_access.address).netloc)

    def _words(self, arguments: Arguments, name: str, shown: list[str]) -> list[str]:
        given = arguments.value(name)
        try:
            words = shlex.split(given) if isinstance(given, str) else given or []
        except ValueError as error:
            raise UserError(f"{self._where}.{name}: {error}") from error
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError(
                f"{self._where}.{name} is {given!r:.80}: give a text or a list of words"
            )
        return [self._word(str(word), shown) for word in words]

    def _word(self, word: str, shown: list[str]) -> str:
        if PROMPT in word:
            return word.replace(PROMPT, self.task.question)
        path = Path(word).absolute()
        if not path.is_file():
            return word
        plugins = [folder.resolve() for folder in plugin_dirs_from_environment()]
        is_own = agent_commands_are_allowed() and not Path(word).is_absolute()
        if is_own or any(path.resolve().is_relative_to(folder) for folder in plugins):
            shown.append(str(path))
        return str(path)

    def _environment(self, arguments: Arguments) -> dict[str, str]:
        added = arguments.value("environment") or {}
        if not isinstance(added, dict) or not all(isinstance(v, str) for v in added.values()):
            raise UserError(f"{self._where}.environment is {added!r:.80}: give names with texts")
        access = self.model.api_access
        return {
            "OPENAI_BASE_URL": access.address,
            "OPENAI_API_KEY": access.key,
            "ANTHROPIC_BASE_URL": access.address.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": access.key,
            "TRINITY_MODEL": access.model_path,
            "TRINITY_PROMPT": self.task.question,
            **{name: str(value) for name, value in added.items()},
        }


class ClientsWorkflow(Workflow):
    """Hands over one committed call for each run, with the reward that its client gave.

    It asks the model nothing. The tasks are made by the buffer: the taskset is a queue.
    """

    is_async = True
    shares_loop = True
    known_args = frozenset()

    async def run_async(self) -> list[Experience]:
        """Returns the answers to the call."""
        return await self.model.committed_answers()


class AgentFailed(RuntimeError):
    """The agent or its reward's command ended with an error."""


class _Folder:
    """An empty folder of this machine, in which commands have the explorer's rights."""

    def __init__(self, path: Path, redact: Redact) -> None:
        self._path, self._redact = path, redact

    async def write(self, name: str, content: bytes) -> None:
        (self._path / name).write_bytes(content)

    async def finish(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        same = {name: os.environ[name] for name in SAME_VARIABLES if name in os.environ}
        code, said = await _finished(command, self._path, {**same, **environment})
        return _said(command, code, self._redact(said.decode(errors="replace").strip()))


class _SandboxFolder:
    """The folder of a sandbox."""

    def __init__(self, sandbox: Sandbox, redact: Redact) -> None:
        self._sandbox, self.write, self._redact = sandbox, sandbox.write, redact

    async def finish(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        outcome = await self._sandbox.run(
            command,
            seconds=MOST_SECONDS,
            environment=environment,
            max_bytes=KEPT_BYTES,
            ends_others=True,
        )
        text = self._redact(outcome.output.decode(errors="replace").strip())
        return _said(command, outcome.code, text)


@contextlib.asynccontextmanager
async def _opened(
    sandbox: SandboxSpec | None, redact: Redact
) -> AsyncIterator[_Folder | _SandboxFolder]:
    """Yields the place of a run; what its commands print has no secrets of the run."""
    if sandbox is None:
        with tempfile.TemporaryDirectory(prefix="trinity-agent-") as name:
            yield _Folder(Path(name), redact)
    else:
        async with open_sandbox(sandbox) as made:
            yield _SandboxFolder(made, redact)


async def _finished(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[int, bytes]:
    """Runs a command to its end; returns its exit code and the end of its output.

    The processes that it has started end with it, and it ends with the explorer.

    Raises: UserError if it cannot be started.
    """
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise UserError(f"there is no program `{command[0]}` on the PATH of the explorer")
    said = bytearray()
    async with _end_kept_in(said) as writing:
        process = await asyncio.create_subprocess_exec(
            *OWN_IDENTITY.command([program, *command[1:]], death_signal=signal.SIGKILL),
            cwd=folder,
            env={**environment, FOLDER_VARIABLE: str(folder)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,  # a pipe of asyncio's would be waited for until all have closed it
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Some have left the group, such as a server that an agent keeps its tools in.
            await asyncio.to_thread(kill_marked, f"{FOLDER_VARIABLE}={folder}")
            await process.wait()
    return code, bytes(said)


@contextlib.asynccontextmanager
async def _end_kept_in(said: bytearray) -> AsyncIterator[int]:
    """Yields a pipe to write to; `said` gets the end of what is written."""
    reading, writing = os.pipe()
    output = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb")
    )
    keeping = asyncio.create_task(_keep_end(output, said))
    try:
        yield writing
    finally:
        os.close(writing)
        await asyncio.wait([keeping], timeout=DRAIN_SECONDS)
        keeping.cancel()
        transport.close()


def _said(command: Sequence[str], code: int, text: str) -> str:
    """Returns a command's last output. Raises: AgentFailed unless it exited with 0."""
    if code:
        how = f"with {code}" if code > 0 else f"by {signal.Signals(-code).name}"
        raise AgentFailed(f"{_shown(command)} ended {how}{_quoted(text)}")
    return text


async def _keep_end(output: asyncio.StreamReader, said: bytearray) -> None:
    while chunk := await output.read(KEPT_BYTES):
        said += chunk
        del said[:-KEPT_BYTES]


def _shown(command: Sequence[str]) -> str:
    return f"`{' '.join(command)[:SHOWN_COMMAND].splitlines()[0]}`"


def _quoted(text: str) -> str:
    return f"; it said last: {text[-SHOWN_CHARACTERS:]}" if text else "; it printed nothing"


def _number(command: Sequence[str], said: str) -> float:
    """Returns the number in the last line."""
    try:
        number = float(said.rpartition("\n")[2])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise AgentFailed(f"{_shown(command)}: its last line is no number{_quoted(said)}")
    return number
