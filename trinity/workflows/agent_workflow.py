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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from trinity.config.model_code_policy import check_agent_commands
from trinity.errors import UserError
from trinity.runtime.process.child_process import OWN_IDENTITY
from trinity.types import Experience, JsonValue
from trinity.workflows.arguments import Arguments
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.turns import merge_turns

AGENT = "agent"
"""The workflow's name."""
KEPT_BYTES = 8192
"""Of what an agent prints: its end."""
SHOWN_CHARACTERS = 500
SHOWN_COMMAND = 120
DRAIN_SECONDS = 1.0
"""Time to read the rest of the output of a command that has ended."""
SAME_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV")
"""Variables that an agent shares with the explorer, whose other ones may be secrets."""
PROMPT = "{prompt}"


class AgentWorkflow(SimpleWorkflow):
    """Starts `command` for each run, waits for its end, and scores its last answer.

    The command is a list of words, or a text that is split as a shell does; `{prompt}` in a word is
    the task's prompt, and a word that names a file below the folder where the run was started
    becomes its path. It runs in an empty folder that is removed afterwards. The address and
    key of the run are in `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and for Anthropic's clients in
    `ANTHROPIC_BASE_URL` and `ANTHROPIC_API_KEY`; the model's name is in `TRINITY_MODEL`, the prompt
    in `TRINITY_PROMPT`, the row without its truth in the file `task.json`. `environment` adds
    variables. After `max_calls` answers the model answers no more.

    With `reward_command`, started in the same folder with the row in `row.json`, the reward is the
    number in its last line. Otherwise the taskset's reward scores the last answer.
    """

    keeps_history = True
    gives_several_samples = True
    usual_args: ClassVar[Mapping[str, JsonValue]] = {
        "command": None,
        "reward_command": None,
        "environment": {},
        "max_calls": 100,
    }
    known_args: ClassVar[frozenset[str] | None] = frozenset(usual_args)

    async def run_async(self) -> list[Experience]:
        """Returns a sample for each sequence of calls that continue one another.

        Raises: UserError for arguments that are not right or an agent that asked nothing,
            AgentFailed for one that ended otherwise than by itself.
        """
        check_agent_commands()
        arguments = Arguments(self)
        command = self._words(arguments, "command")
        judge = self._words(arguments, "reward_command")
        if not command:
            raise UserError(f"{self._where}.command is missing: give the command of the agent")
        self.model.max_answers = arguments.positive_int("max_calls")
        environment = self._environment(arguments)
        with tempfile.TemporaryDirectory(prefix="trinity-agent-") as name:
            folder = Path(name)
            shown = {k: v for k, v in self.task.raw_task.items() if k != self._truth_key}
            (folder / "task.json").write_text(json.dumps(shown, default=str))
            said = await _finished(command, folder, environment)
            turns = self.model.extract_experience_from_history()
            if not turns:
                raise UserError(
                    f"the agent {_shown(command)} asked the model nothing: let it ask at "
                    f"OPENAI_BASE_URL or ANTHROPIC_BASE_URL{_quoted(said)}"
                )
            samples = merge_turns(turns)
            if judge:
                (folder / "row.json").write_text(json.dumps(self.task.raw_task, default=str))
                reward = _number(judge, await _finished(judge, folder, environment))
                parts, numbers = {"reward_command": reward}, dict[str, float]()
            else:
                await self._score(turns[-1], self._reward())
                parts, numbers = turns[-1].reward_parts, turns[-1].metrics
        for sample in samples:
            sample.reward_parts = dict(parts)
            sample.reward = sum(parts.values())
            sample.metrics |= {**numbers, "agent_calls": float(len(turns))}
        return samples

    @property
    def _where(self) -> str:
        return f"taskset {self.task.taskset!r}: workflow_args"

    @property
    def _truth_key(self) -> str:
        return str(self.task.format_args.response_key)

    def _words(self, arguments: Arguments, name: str) -> list[str]:
        given = arguments.value(name)
        try:
            words = shlex.split(given) if isinstance(given, str) else given or []
        except ValueError as error:
            raise UserError(f"{self._where}.{name}: {error}") from error
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError(
                f"{self._where}.{name} is {given!r:.80}: give a text or a list of words"
            )
        return [self._word(str(word)) for word in words]

    def _word(self, word: str) -> str:
        if PROMPT in word:
            return word.replace(PROMPT, self.task.question)
        return str(Path(word).absolute()) if Path(word).is_file() else word

    def _environment(self, arguments: Arguments) -> dict[str, str]:
        added = arguments.value("environment") or {}
        if not isinstance(added, dict) or not all(isinstance(v, str) for v in added.values()):
            raise UserError(f"{self._where}.environment is {added!r:.80}: give names with texts")
        access = self.model.api_access
        return {
            **{name: os.environ[name] for name in SAME_VARIABLES if name in os.environ},
            "OPENAI_BASE_URL": access.address,
            "OPENAI_API_KEY": access.key,
            "ANTHROPIC_BASE_URL": access.address.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": access.key,
            "TRINITY_MODEL": access.model_path,
            "TRINITY_PROMPT": self.task.question,
            **{name: str(value) for name, value in added.items()},
        }


class AgentFailed(RuntimeError):
    """The agent or its reward's command ended with an error."""


async def _finished(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a command to its end; returns the end of its output.

    The processes that it has started end with it, and it ends with the explorer.

    Raises: UserError if it cannot be started, AgentFailed unless it exits with 0.
    """
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        raise UserError(f"there is no program `{command[0]}` on the PATH of the explorer")
    process = await asyncio.create_subprocess_exec(
        *OWN_IDENTITY.command([program, *command[1:]], death_signal=signal.SIGKILL),
        cwd=folder,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = bytearray()
    reading = asyncio.create_task(_keep_end(process.stdout, said))
    try:
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Whoever has left the group may hold the pipe open.
        await asyncio.wait([reading], timeout=DRAIN_SECONDS)
        reading.cancel()
        await process.wait()
    text = said.decode(errors="replace").strip()
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
