"""A run that is asked over its address, and a store that outlasts its attempts."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import openai

from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.openai_api.session import Session
from services.explorer.types import CommitOutcome, ResultReport
from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.errors import Unavailable
from trinity.types import Experience, SamplingParams
from trinity.workflows.answers import TurnNode
from trinity.workflows.generation import ModelLimits
from trinity.workflows.model import ModelWrapper
from trinity.workflows.turn_codec import encode_payload

SESSION = "0f4a1f6e-6a4b-4d0e-9a53-6d6e7e1d3a10"
COMMITTED = ResultReport(CommitOutcome.COMMITTED)
WAIT_SECONDS = 60.0


@dataclass
class Shelf:
    """A store that outlasts attempts; while it is `held`, nothing is reported."""

    turns: list[SessionTurn] = field(default_factory=list)
    held: bool = False
    refusal: str = ""
    is_away: bool = False
    sent: list[tuple[SessionTurn, "asyncio.Future[ResultReport]"]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def load(self) -> list[SessionTurn]:
        if self.is_away:
            raise Unavailable("it does not answer")
        return self.turns

    def store(self, turn: TurnNode) -> "asyncio.Future[ResultReport]":
        report: asyncio.Future[ResultReport] = asyncio.get_running_loop().create_future()
        message = SessionTurn(
            id=turn.id,
            parent_id="" if turn.parent is None else turn.parent.id,
            prompt_sha256=turn.prompt_sha256,
            ordinal=turn.ordinal,
            payload=encode_payload(turn),
        )
        self.sent.append((message, report))
        self.arrived.set()
        if not self.held:
            self.report()
        return report

    def report(self) -> None:
        for message, report in self.sent:
            if self.refusal:
                report.set_result(ResultReport(CommitOutcome.REJECTED, self.refusal))
            else:
                self.turns.append(message)
                report.set_result(COMMITTED)
        self.sent.clear()


def seed_of(parent: bytes, prompt: bytes, ordinal: int) -> int:
    return int.from_bytes(parent[:2] + prompt[:2], "big") + ordinal


@dataclass
class Run:
    """A run with any number of attempts, one after the other."""

    api: AttemptApiServer
    shelf: Shelf
    engine: ArithmeticEngine = field(default_factory=ArithmeticEngine)
    id: str = SESSION
    secret: str = "s" * 32
    model: ModelWrapper = field(init=False)

    def begin(self) -> openai.AsyncOpenAI:
        """Another attempt, and its client."""
        self.model = ModelWrapper(
            generator=self.engine,
            tokenizer=CharacterTokenizer(),
            limits=ModelLimits(max_model_len=2000, max_prompt_tokens=1900),
            sampling=SamplingParams(max_tokens=8),
            weights=(4, 1),
            seed_of_call=lambda call: 100 + call,
            keeps_history=True,
        )
        session = Session(session_id=self.id, store=self.shelf, seed_of_turn=seed_of)
        self.model.enable_api(self.api.register_attempt(self.model, session, secret=self.secret))
        return self.model.get_openai_async_client()

    @property
    def answers(self) -> list[Experience]:
        return self.model.extract_experience_from_history(clear_history=False)


async def ask(client: openai.AsyncOpenAI, *chat: str, **options: Any) -> Any:
    """Asks a chat whose messages are of the user and the assistant by turns."""
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[i % 2], "content": text} for i, text in enumerate(chat)]
    return await client.chat.completions.create(model="m", messages=messages, **options)


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)
