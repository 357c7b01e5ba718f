"""Runs of an agent with many turns, and what must hold of each answer that it has received.

Three witnesses are compared: the agent's own log, the engine's, and what the trainer had.
"""

import asyncio
import hashlib
import hmac
import os
import random
import signal
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.rows import dict_row
from pydantic import JsonValue

from tests.chaos import talking_agent
from tests.chaos.arena import Arena
from tests.chaos.folder import FaultsFolder, Line
from tests.chaos.journals import ANSWERS, SAMPLINGS
from tests.support.model_free.engine import END_TOKEN
from tests.support.model_free.experiment import experiment_plan
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.experience_pb2 import Experience, TurnPayload
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.data.codec import experience_from_proto

MANY = 1000
LOOK_SECONDS = 0.02
SESSIONS = """
    SELECT session_id, session_key FROM session JOIN stage USING (tenant, experiment_id, stage)
    WHERE experiment_id = %s
"""
TURNS = """
    SELECT session_id, turn_id, body FROM turn
    JOIN payload ON payload_id = turn_id AND payload.experiment_id = turn.experiment_id
    WHERE turn.experiment_id = %s
"""
TRAINED = """
    SELECT e.assignment_id, e.run, p.body FROM batch_item i
    JOIN stage s ON s.experiment_id = i.experiment_id AND s.line = i.line
    JOIN experience e ON e.experience_id = i.experience_id
    JOIN payload p ON p.payload_id = e.payload_id AND p.experiment_id = e.experiment_id
    WHERE i.experiment_id = %s
"""
Exchange = tuple[str, str]
"""A prompt and its answer, as texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """An answer that an agent has received completely."""

    session: str
    turn: str
    exchange: Exchange
    at: float


def talking_plan(arena: Arena, name: str, *, num_steps: int) -> ExperimentPlan:
    """Builds an experiment of such agents; its contents stay."""
    environment: JsonValue = {"ANSWERS": str(arena.folder.path / "journal" / ANSWERS)}
    command: JsonValue = [sys.executable, str(Path(talking_agent.__file__).resolve())]
    agent: JsonValue = {"command": command, "environment": environment}
    return experiment_plan(
        arena.root / name,
        name=name,
        model={"max_prompt_tokens": 4000},
        buffer={
            "total_steps": num_steps,
            "keep_steps": None,
            "explorer_input": {
                "default_workflow_type": "agent",
                "taskset": {"workflow_args": agent},
            },
        },
        explorer={"max_retry_times": MANY},
    )


async def strike_at_turns(arena: Arena, kinds: Sequence[str], *, last: int, seed: int) -> None:
    """Kills one of these for each of as many numbers of answers up to `last`."""
    chance = random.Random(seed)
    known = len(list(arena.folder.read(ANSWERS)))
    moments = sorted(chance.randrange(1, last) for _ in kinds)
    for moment, kind in zip(moments, chance.sample(kinds, len(kinds)), strict=True):
        while len(list(arena.folder.read(ANSWERS))) - known < moment:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        while (pid := _pid_of(arena, kind, chance)) is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pid_of(arena: Arena, kind: str, chance: random.Random) -> int | None:
    pid = arena.stack.pids["explorer" if kind == "agent" else kind]
    if kind != "agent" or pid is None:
        return pid if pid is not None and psutil.pid_exists(pid) else None
    with suppress(psutil.Error):
        own = [one for one in psutil.Process(pid).children(recursive=True) if _is_agent(one)]
        return chance.choice(own).pid if own else None
    return None


def _is_agent(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return talking_agent.__file__ in process.cmdline()
    return False


def talk_findings(arena: Arena, ended: pb.Experiment) -> dict[str, list[str]]:
    """Returns what is wrong with the answers of an experiment that has ended, by check."""
    with psycopg.connect(arena.secret("buffer-postgres-dsn"), row_factory=dict_row) as connection:
        sessions, turns, trained = (
            connection.execute(query, [ended.id]).fetchall() for query in (SESSIONS, TURNS, TRAINED)
        )
    heard = list(_heard(arena.folder, sessions))
    samplings = list(arena.folder.read(SAMPLINGS))
    found = {
        "answers_are_kept": [*_changed(heard, turns), *([] if heard else ["no agent asked"])],
        "sampled_once": _sampled_again(heard, samplings),
        "trained_once": _not_trained_once(heard, trained, samplings),
    }
    return {check: sentences for check, sentences in found.items() if sentences}


def _heard(folder: FaultsFolder, sessions: Sequence[Mapping[str, Any]]) -> Iterator[Heard]:
    own = {_secret(row): str(row["session_id"]) for row in sessions}
    for line in folder.read(ANSWERS):
        if line["session"] in own:
            yield Heard(
                session=own[line["session"]],
                turn=line["id"].removeprefix("chatcmpl-"),
                exchange=(_rendered(line["chat"]), line["said"]),
                at=line["at"],
            )


def _secret(row: Mapping[str, Any]) -> str:
    return hmac.digest(row["session_key"], str(row["session_id"]).encode(), hashlib.sha256).hex()


def _rendered(chat: Sequence[Mapping[str, str]]) -> str:
    end = chr(END_TOKEN)
    texts = (one["content"] for one in chat)
    return "".join(f"{text}{end}" if i % 2 else f"user:{text}\n" for i, text in enumerate(texts))


def _changed(heard: Sequence[Heard], turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """An answer is the stored turn of its name, and the only one to its prompt in its session."""
    stored = {row["turn_id"].hex: (str(row["session_id"]), _text_of(row["body"])) for row in turns}
    told: dict[tuple[str, str], Exchange] = {}
    found = []
    for one in heard:
        prompt, said = one.exchange
        if stored.get(one.turn) != (one.session, said):
            found.append(f"turn {one.turn} is {stored.get(one.turn)}, and was told as {said!r}")
        first = told.setdefault((one.session, prompt), (one.turn, said))
        if first != (one.turn, said):
            found.append(f"session {one.session} got {first} and then {(one.turn, said)}")
    return found


def _text_of(body: bytes) -> str:
    payload = TurnPayload.FromString(zlib.decompress(body))
    return experience_from_proto(payload.answer).response_text


def _sampled_again(heard: Sequence[Heard], samplings: Sequence[Line]) -> list[str]:
    """After an answer was received, the engine is not asked for it again."""
    first: dict[Exchange, float] = {}
    owners: defaultdict[Exchange, set[str]] = defaultdict(set)
    for one in heard:
        first.setdefault(one.exchange, one.at)
        owners[one.exchange].add(one.session)
    lines = (((line["prompt"], line["said"]), line["begun"]) for line in samplings)
    return [
        f"the answer {exchange[1]!r} of session {owners[exchange]} was sampled again"
        for exchange, begun in lines
        if len(owners[exchange]) == 1 and begun > first[exchange]
    ]


def _not_trained_once(
    heard: Sequence[Heard], trained: Sequence[Mapping[str, Any]], samplings: Sequence[Line]
) -> list[str]:
    """Each answer is trained once after its own prompt, and all that is trained was sampled."""
    counts = Counter(exchange for row in trained for exchange in _exchanges(row["body"]))
    wanted = Counter(exchange for _, exchange in {(one.session, one.exchange) for one in heard})
    sampled = {(line["prompt"], line["said"]) for line in samplings}
    return [
        *(
            f"{said!r} after {prompt[-20:]!r} is trained {counts[prompt, said]} times, not {count}"
            for (prompt, said), count in wanted.items()
            if counts[prompt, said] != count
        ),
        *(f"{said!r} was never sampled" for prompt, said in counts.keys() - sampled),
    ]


def _exchanges(body: bytes) -> Iterator[Exchange]:
    """Yields the trained parts of a sample, each with all that precedes it."""
    sequence = experience_from_proto(Experience.FromString(body)).sequence
    text = bytes(sequence.tokens.tolist()).decode()
    mask = [False] * sequence.prompt_length + sequence.action_mask.tolist() + [False]
    begin = 0
    for place in range(1, len(mask)):
        if mask[place] and not mask[place - 1]:
            begin = place
        if mask[place - 1] and not mask[place]:
            yield text[:begin], text[begin:place].removesuffix(chr(END_TOKEN))
