"""Weights that change amid requests: each token has the weights that drew it."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from services.explorer.engine.in_flight import InFlightEngine, spans_of
from services.explorer.engine.interface import EnginePool
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.types import WeightsId, WeightsVersion
from tests.support.model_free.slots import SlotEngine, wrong_tokens
from trinity.types import FinishReason, SamplingParams, VersionSpan
from trinity.workflows.generation import Generation

NUM_SWAPS = 1000
NUM_CLIENTS = 32


def digest_of(version: int) -> bytes:
    return version.to_bytes(32, "big")


def named(version: int) -> WeightsId:
    return WeightsId(version=version, incarnation=1)


class Weights:
    """Directories of weights, which only say their version."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "tests.support.model_free.slots.read_digest", lambda path: digest_of(int(path.name))
        )

    def version(self, number: int) -> WeightsVersion:
        return WeightsVersion(
            id=named(number), path=Path(f"/{number}"), manifest_sha256=b"", weights_sha256=b""
        )


async def swap_amid_requests(
    engines: Sequence[SlotEngine], weights: Weights, num_swaps: int
) -> tuple[int, int, set[int]]:
    """Returns the wrong tokens, the answers of several versions, and all versions seen."""
    parts = [InFlightEngine(engine, named(0)) for engine in engines]
    pool = EnginePool(parts, loads_in_turn=True)
    loader = WeightLoader(pool, loaded=weights.version(0), in_flight=parts)
    found = [0, 0]
    seen: set[int] = set()
    has_ended = False

    async def ask(client: int) -> None:
        numbers = random.Random(client)
        while not has_ended:
            prompt, seed = [numbers.randrange(97, 123) for _ in range(4)], numbers.randrange(1000)
            answer = await pool.generate(prompt, SamplingParams(max_tokens=200, seed=seed))
            assert answer.version_spans[-1].end == len(answer.token_ids)
            found[0] += wrong_tokens(
                [*prompt, *answer.token_ids],
                len(prompt),
                answer.version_spans,
                seed,
                lambda span: digest_of(span.version),
            )
            found[1] += len(answer.version_spans) > 1
            seen.update(span.version for span in answer.version_spans)

    clients = [asyncio.create_task(ask(client)) for client in range(NUM_CLIENTS)]
    waits = random.Random(7)
    for version in range(1, num_swaps + 1):
        for _ in range(waits.randrange(6)):
            await asyncio.sleep(0)
        await loader.load_published(weights.version(version))
    has_ended = True
    await asyncio.gather(*clients)
    await pool.close()
    return found[0], found[1], seen


async def test_each_token_was_drawn_by_the_weights_of_its_span(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = Weights(monkeypatch)
    wrong, several, seen = await swap_amid_requests([SlotEngine(digest_of(0))], weights, NUM_SWAPS)
    assert wrong == 0
    assert several > NUM_CLIENTS
    assert len(seen) > NUM_SWAPS // 2


async def test_engines_swap_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = Weights(monkeypatch)
    engines = [SlotEngine(digest_of(0)) for _ in range(3)]
    wrong, several, _ = await swap_amid_requests(engines, weights, 60)
    assert (wrong, several > 10) == (0, True)


async def _never() -> None:
    """Takes the place of a pause, or of a fence."""


@pytest.mark.parametrize(
    ("protection", "weak"),
    [("pause_requests", _never), ("_arrivals", _never), ("_drop_caches", lambda: None)],
    ids=["paused", "counted behind the fence", "computed again"],
)
async def test_without_its_protection_spans_are_wrong(
    monkeypatch: pytest.MonkeyPatch, protection: str, weak: Callable[[], object]
) -> None:
    """The controls: the check above sees them."""
    weights = Weights(monkeypatch)
    engine = SlotEngine(digest_of(0))
    monkeypatch.setattr(engine, protection, weak)
    wrong, _, _ = await swap_amid_requests([engine], weights, 60)
    assert wrong > 0


async def test_weights_with_the_same_content_only_change_their_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = Weights(monkeypatch)
    engine = SlotEngine(digest_of(0))
    part = InFlightEngine(engine, named(0))
    loader = WeightLoader(part, loaded=weights.version(0), in_flight=[part])
    again = WeightsVersion(
        id=WeightsId(version=0, incarnation=2),
        path=weights.version(0).path,
        manifest_sha256=b"",
        weights_sha256=b"",
    )
    await loader.load_published(again)
    answer = await part.generate([97], SamplingParams(max_tokens=9, seed=1))
    assert [span.incarnation for span in answer.version_spans] == [2]
    await part.close()


@pytest.mark.parametrize(
    ("swaps", "spans"),
    [
        ((), [(0, 5, 3)]),
        ((2,), [(0, 2, 3), (2, 5, 4)]),
        ((0, 0), [(0, 5, 5)]),
        ((2, 2), [(0, 2, 3), (2, 5, 5)]),
        ((5,), [(0, 5, 3)]),
    ],
)
def test_spans_cover_the_response(
    swaps: tuple[int, ...], spans: list[tuple[int, int, int]]
) -> None:
    answer = Generation(
        token_ids=[1] * 5, logprobs=[0.0] * 5, finish_reason=FinishReason.STOP, swaps=swaps
    )
    names = [named(3 + index) for index in range(len(swaps) + 1)]
    found = [(span.start, span.end, span.version) for span in spans_of(answer, names)]
    assert found == spans


def test_a_response_without_tokens_has_the_last_weights() -> None:
    answer = Generation(token_ids=[], logprobs=[], finish_reason=FinishReason.ABORT, swaps=(0,))
    spans = spans_of(answer, [named(1), named(2)])
    assert spans == (VersionSpan(start=0, end=0, version=2, incarnation=1),)
