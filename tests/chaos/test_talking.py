"""Agents of forty turns: whatever dies, an answer that was received is kept and trained once.

With a protection off, the check that watches it finds something.
"""

import asyncio

import pytest

from tests.chaos.arena import Arena
from tests.chaos.crash import DEATHS
from tests.chaos.journals import ANSWERS
from tests.chaos.shared_arena import ON_IT
from tests.chaos.talking import strike_at_turns
from tests.chaos.talking_agent import NUM_TURNS
from tests.chaos.varieties import VARIETIES, Play, Played

END_SECONDS = 400.0
STRUCK = ("agent",) * 6 + ("explorer",) * 3 + ("buffer",) * 3
NUM_ANSWERS = 2 * 4 * 2 * NUM_TURNS
"""Steps, tasks, runs of each and turns of a run."""
pytestmark = [ON_IT, pytest.mark.timeout(1200)]


async def played(arena: Arena, name: str, expected: str = "") -> Played:
    play = Play(arena=arena, name=name, expected=expected, end_seconds=END_SECONDS)
    return await VARIETIES["talking"](play)


async def test_answers_outlast_agent_explorer_and_buffer(arena: Arena) -> None:
    calm = await played(arena, "talking-calm")
    assert calm.found == {}
    known = len(list(arena.folder.read(ANSWERS)))
    assert known == NUM_ANSWERS
    striking = asyncio.create_task(strike_at_turns(arena, STRUCK, last=NUM_ANSWERS, seed=5))
    struck = await played(arena, "talking-struck", calm.weights)
    await striking
    assert struck.found == {}
    assert len(list(arena.folder.read(ANSWERS))) - known > NUM_ANSWERS, "some were given again"


@pytest.mark.parametrize(
    ("off", "check"),
    [
        (("stored-then-told",), "sampled_once"),
        (("stored-then-told", "seeds"), "answers_are_kept"),
        (("trained-once",), "trained_once"),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, tuple) else None,
)
async def test_without_its_protection_a_check_finds_something(
    arena: Arena, off: tuple[str, ...], check: str
) -> None:
    known = len(list(arena.folder.read(DEATHS)))
    for protection in off:
        arena.folder.switch_off(protection)
    if "stored-then-told" in off:
        arena.folder.arm("explorer.turn-made")
    try:
        weak = await played(arena, f"talking-without-{'-'.join(off)}")
    finally:
        for protection in off:
            arena.folder.switch_on(protection)
    assert len(list(arena.folder.read(DEATHS))) - known == ("stored-then-told" in off)
    assert check in weak.found
