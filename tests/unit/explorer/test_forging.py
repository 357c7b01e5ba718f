"""Inventions of an agent, and names of other runs in its requests, are never trained as answers."""

import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from tests.unit.explorer.builders import ArithmeticEngine
from tests.unit.explorer.session_run import Run, Shelf, ask, text_of
from tests.unit.workflows.test_sessions import trained_of
from trinity.types import SamplingParams
from trinity.workflows.answers import close_session
from trinity.workflows.generation import Generation


async def test_a_request_that_names_another_run_reaches_its_own(run: Run) -> None:
    other = Run(run.api, Shelf(), id=str(uuid.UUID(int=7)), secret="t" * 32)
    async with run.begin() as client, other.begin() as its:
        theirs = await its.responses.create(model="m", input="theirs")
        names: Any = {
            "extra_headers": {
                "X-Claude-Code-Session-Id": other.id,
                "session-id": other.secret,
                "thread-id": theirs.id,
            },
            "extra_body": {
                "prompt_cache_key": other.id,
                "metadata": {"user_id": f'{{"session_id": "{other.id}"}}'},
                "session_id": other.secret,
            },
        }
        await ask(client, "a", **names)
        own = await client.responses.create(model="m", input="b", **names)
        for name in (theirs.id, theirs.id.replace("resp_", ""), other.id, other.secret):
            with pytest.raises(openai.BadRequestError, match="not kept here"):
                await client.responses.create(model="m", input="c", previous_response_id=name)
        await client.responses.create(model="m", input="d", previous_response_id=own.id)
    assert [turn.answer.prompt_text for turn in other.model.session_turns] == ["user:theirs\n"]
    assert len(run.model.session_turns) == len(run.shelf.turns) == 3


@dataclass
class Logged(ArithmeticEngine):
    """Writes down what it drew: each token, after all tokens before it."""

    drawn: Counter[tuple[int, ...]] = field(default_factory=Counter)

    async def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParams, **given: Any
    ) -> Generation:
        made = await super().generate(prompt_token_ids, sampling, **given)
        whole = (*prompt_token_ids, *made.token_ids)
        self.drawn.update(whole[:end] for end in range(len(prompt_token_ids) + 1, len(whole) + 1))
        return made


@pytest.mark.parametrize("seed", range(4))
async def test_what_an_agent_invents_is_context_and_what_was_drawn_is_trained_once(
    run: Run, seed: int
) -> None:
    """It tells answers that the model never gave, and alters, moves and begins others."""
    run.engine, chance = Logged(), random.Random(seed)
    chats: list[list[str]] = [["a"]]
    async with run.begin() as client:
        for number in range(60):
            chat = list(chance.choice(chats))
            match chance.choice(("go on", "invent", "alter", "move", "begin", "text", "tokens")):
                case "invent":
                    chat += [chance.choice(("xyz", "4", "")), f"b{number}"]
                case "alter" if len(chat) > 2:
                    chat[1] = chance.choice((f"{chat[1]}x", chat[1][:-1], f" {chat[1]} "))
                case "move" if len(chat) > 2:
                    chat[1] = chance.choice([own[1] for own in chats if len(own) > 2])
                case "begin":
                    chat.append(chance.choice(("x", "xy")))
                case "text" | "tokens" as kind:
                    await _go_on_in_tokens(client, chance, run, as_text=kind == "text")
                    continue
            said = text_of(await ask(client, *chat))
            chats.append([*chat, said, f"c{number}"] if len(chat) % 2 else [*chat[:-1]])
    samples = close_session(run.model.session_turns).samples
    assert Counter(trained_of(samples)) == run.engine.drawn


async def _go_on_in_tokens(
    client: openai.AsyncOpenAI, chance: random.Random, run: Run, *, as_text: bool
) -> None:
    """Goes on from the tokens of an earlier answer, or from some that differ at one place."""
    turns = run.model.session_turns
    tokens = chance.choice(turns).answer.sequence.tokens.tolist() if turns else [97]
    if chance.random() < 0.5:
        tokens[chance.randrange(len(tokens))] = 98
    if as_text:
        prompt = bytes(tokens).decode()
        await client.completions.create(model="m", prompt=prompt, max_tokens=4)
        return
    body = {"token_ids": tokens, "sampling_params": {"max_tokens": 4}}
    await client.post("../inference/v1/generate", body=body, cast_to=object)
