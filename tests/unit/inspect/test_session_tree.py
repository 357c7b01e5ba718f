"""The tree of a session: what each turn went on from, and which sample has it by its digest."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from tests.unit.inspect.test_tables import shown
from tests.unit.workflows.scripted import ScriptedEngine, scripted_model
from tests.unit.workflows.test_origin_of_samples import sent
from trinity.api.v1 import query_pb2
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.data.codec_checks import checked_turn_digests
from trinity.inspect.session_tree import SessionTree, read_session, session_tree
from trinity.inspect.tables import session_table
from trinity.types import JsonObject, SamplingParams
from trinity.workflows.answers import TurnNode, close_session, prompt_digest
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper
from trinity.workflows.turn_codec import encode_payload

TOOL: JsonObject = {"type": "function", "function": {"name": "add", "parameters": {}}}
ANSWERS = ("one", "two", "2", "three", "A title", "lost")


@dataclass
class Agent:
    """Asks, retries, forks and asks for a title; each turn is stored as it is made."""

    model: ModelWrapper = field(
        default_factory=lambda: scripted_model(ScriptedEngine(list(ANSWERS)))
    )
    turns: list[TurnNode] = field(default_factory=list)

    async def ask(
        self, text: str, after: TurnNode | None = None, *, tools: bool = True, ordinal: int = 0
    ) -> TurnNode:
        before: list[Message] = []
        turn = after
        while turn is not None:
            said = Message(role="assistant", content=turn.answer.response_text)
            before = [*turn.messages, said, *before]
            turn = turn.parent
        new = [Message(role="user", content=text)]
        (answer,) = await self.model.chat_async([*before, *new], tools=[TOOL] if tools else None)
        node = TurnNode(
            id=f"turn {len(self.turns)}",
            parent=after,
            prompt_sha256=prompt_digest(answer.sequence.tokens.tolist(), SamplingParams()),
            ordinal=ordinal,
            answer=answer,
            messages=new,
        )
        self.turns.append(node)
        return node

    @property
    def stored(self) -> list[SessionTurn]:
        return [
            SessionTurn(
                id=turn.id,
                parent_id=turn.parent.id if turn.parent else "",
                payload=encode_payload(turn),
            )
            for turn in self.turns
        ]


async def forked() -> Agent:
    agent = Agent()
    first = await agent.ask("count")
    second = await agent.ask("on", first)
    await agent.ask("in digits", first)
    await agent.ask("on\n\x1b[31m", second)
    await agent.ask("a title for this", tools=False)
    await agent.ask("count", ordinal=1)
    return agent


def records(agent: Agent) -> list[query_pb2.ExperienceRecord]:
    """The samples of the attempt that counts: it was not given the last turn."""
    made = map(sent, close_session(agent.turns[:-1]).samples)
    return [
        query_pb2.ExperienceRecord(
            id=f"{number}0000000-0000",
            assignment_id="a",
            reward=0.5,
            turn_sha256=checked_turn_digests(message),
        )
        for number, message in enumerate(made)
    ]


async def test_turns_stand_below_those_that_they_go_on_from() -> None:
    agent = await forked()
    tree = session_tree(agent.stored, records(agent))
    assert [row[:2] for row in tree.rows] == [
        ("╷ 1", "-"),
        ("├─╴ 3", "1"),
        ("│ 2", "1"),
        ("╵ 4", "2"),
        ("· 5", "-"),
        ("· 6", "-"),
    ]
    assert tree.summary == "6 turns, 4 paths, 1 pruned, 1 in no sample, reward 0.5"
    assert tree.rows[2][2:4] == ("4", str(agent.turns[1].answer.sequence.response_length))
    assert tree.rows[2][5:] == ("user: on", "two")


async def test_the_sample_of_a_turn_is_found_by_its_digest() -> None:
    agent = await forked()
    own = records(agent)
    told = {row[0].split()[-1]: row[4] for row in session_tree(agent.stored, own).rows}
    for record in own:
        contents = [digest.hex() for digest in record.turn_sha256]
        assert list(told.values()).count(record.id[:8]) == len(contents)
    assert told["5"] == "pruned" and told["6"] == "in no sample"
    changed = [query_pb2.ExperienceRecord(id=r.id, turn_sha256=[b"x" * 32]) for r in own]
    others = {row[4] for row in session_tree(agent.stored, changed).rows}
    assert others == {"pruned", "in no sample"}


async def test_a_turn_without_content_takes_its_children_along() -> None:
    stored = (await forked()).stored
    stored[1].payload = b""
    stored[4].payload = b"damaged"
    tree = session_tree(stored, [])
    gone = [row[0].split()[-1] for row in tree.rows if row[4] == "content is gone"]
    assert gone == ["2", "4", "5"] and "3 content is gone" in tree.summary


class Queries:
    """Answers what is asked for the tree."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def GetSession(self, request: query_pb2.GetSessionRequest, **_: object) -> object:
        has_turns = (request.assignment_id, request.run) == ("a", 0)
        parts = self._agent.stored if has_turns else []
        return streamed([query_pb2.GetSessionResponse(turns=[turn]) for turn in parts])

    def ListExperiences(self, _: query_pb2.ListExperiencesRequest, **__: object) -> object:
        other = query_pb2.ExperienceRecord(id="other", assignment_id="b", reward=9.0)
        return streamed(
            [query_pb2.ListExperiencesResponse(experiences=[*records(self._agent), other])]
        )


async def streamed(messages: Sequence[object]) -> AsyncIterator[object]:
    for message in messages:
        yield message


async def test_a_terminal_gets_the_tree_and_nothing_that_steers_it() -> None:
    agent = await forked()
    queries = Queries(agent)
    record = records(agent)[0]
    tree = await read_session(queries, None, record)  # type: ignore[arg-type]
    text = shown(session_table(cast(SessionTree, tree)))
    assert "session: 6 turns, 4 paths" in text and "├─╴ 3" in text and "\x1b" not in text
    record.eid.run = 1
    assert await read_session(queries, None, record) is None  # type: ignore[arg-type]
